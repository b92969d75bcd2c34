"""The child process that a rank waits for, detected when the rank's stack shows such a wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from otel_torchdist.judge.verdict.wording.places import describe_child
from otel_torchdist.judge.world.following.child_waits import PAUSE_NS, ChildWaits
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.stacks import Stacks, ThreadStack
from otel_torchdist.node.processes.children import Command, children_of, command_of, inspect_child
from otel_torchdist.node.processes.state import process_state
from otel_torchdist.tape.identity import TapeIdentity, identify
from tests.support.waiting import until

IN_LOADER = CallSiteName("_try_get_data", "/site-packages/torch/utils/data/dataloader.py", 1_000)
SECOND = 1_000_000_000
IN_POOL = CallSiteName("wait", "/usr/lib/python3.11/multiprocessing/pool.py", 765)

FORKS = """
import multiprocessing, threading
lock, context = threading.Lock(), multiprocessing.get_context("fork")
children = [context.Process(target=lock.acquire, daemon=True) for _ in range(2)]
with lock:
    for child in children:
        child.start()
    print(*(child.pid for child in children), flush=True)
    children[0].join()
"""
"""A rank whose children wait for a lock that was held when they were forked."""


@pytest.fixture
def stuck_child(tmp_path: Path) -> Iterator[int]:
    """Start a child of this process that reads from an empty pipe."""
    shard = tmp_path / "shard"
    os.mkfifo(shard)
    descriptor = os.open(shard, os.O_RDWR)
    with subprocess.Popen(["cat", str(shard)], stdout=subprocess.DEVNULL) as child:
        try:
            # While it starts, it may be in a short read of its libraries.
            until(lambda: (view := inspect_child(child.pid)) is not None and view.is_stuck and view.file == str(shard))
            yield child.pid
        finally:
            child.kill()
            os.close(descriptor)


@pytest.mark.process
def test_child_is_found_again_at_once_after_stacks_were_asked_for_again(stuck_child: int) -> None:
    """A report may follow a new stack within milliseconds, so the child is checked at once."""
    waits = ChildWaits(identify(0, 0, 1, 64), os.geteuid())
    now_ns = 10 * PAUSE_NS
    waiting = Stacks(now_ns, (ThreadStack(1, "MainThread", (IN_LOADER,)),))
    first = waits.check(waiting, now_ns)
    assert waits.check(Stacks(now_ns + 1, None), now_ns + 1) is None
    again = waits.check(waiting, now_ns + 2)
    assert first is not None and again is not None
    assert (first.pid, again.pid) == (stuck_child, stuck_child)


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can read what processes of other users do")
def test_nobody_learns_which_files_other_users_read(stuck_child: int) -> None:
    """A reader run by root does not reveal other users' children to a tape's owner, whatever pid the tape claims."""
    assert inspect_child(stuck_child) is not None
    waits = ChildWaits(identify(0, 0, 1, 64), os.geteuid() + 23456)
    now_ns = 10 * PAUSE_NS
    assert waits.check(Stacks(now_ns, (ThreadStack(1, "MainThread", (IN_LOADER,)),)), now_ns) is None


def identity_of(pid: int) -> TapeIdentity:
    """Return the identity of the tape that a process would write."""
    state = process_state(pid)
    assert state is not None
    return replace(identify(0, 0, 1, 64), pid=pid, pid_start_ticks=state[1])


@pytest.mark.process
def test_children_that_were_forked_while_a_lock_was_held() -> None:
    """All children that wait for a lock held at the fork are found, with the thread that held it."""
    main = ThreadStack(1, "MainThread", (IN_POOL, CallSiteName("main", "/home/ada/train.py", 9)))
    other = ThreadStack(2, "refresher", (CallSiteName("refresh", "/home/ada/train.py", 7),))
    stacks = Stacks(1, (main, other))
    # The rank is a separate process, because libraries imported here by other tests have threads and fork handlers.
    with subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, start_new_session=True) as rank:
        try:
            assert rank.stdout is not None
            children = {int(pid) for pid in rank.stdout.readline().split()}
            waits = ChildWaits(identity_of(rank.pid), os.geteuid())
            assert waits.check(stacks, time.monotonic_ns()) is None, "they may only just have begun"
            until(lambda: (found := waits.check(stacks, time.monotonic_ns())) is not None and found.others)
            found = waits.check(stacks, time.monotonic_ns())
            in_loader = ThreadStack(1, "MainThread", (IN_LOADER,))
            of_loader = waits.check(Stacks(1, (in_loader,)), time.monotonic_ns() + 2 * PAUSE_NS)
        finally:
            os.killpg(rank.pid, signal.SIGKILL)
    assert found is not None
    assert {found.pid, *found.others} == children
    assert (found.is_locked, found.is_forked, found.holder) == (True, True, other.frames[0])
    assert describe_child(found, 12.3) == (
        f"its 2 child processes (pids {found.pid}, {found.others[0]}), which have been blocked on a lock for "
        "12.3 s, which was held when they were forked, as it seems, by its thread in refresh at train.py:7"
    )
    assert of_loader is None, "no loader's workers"


def commands_of(pid: int) -> list[Command]:
    """Return the running commands that a process has started."""
    return [one for child in children_of(pid) if (one := command_of(child, pid)) is not None]


@pytest.mark.process
def test_command_that_a_rank_waits_for() -> None:
    """The only command that a rank runs is named, although it may not be stuck. Of several, none is named."""
    main = ThreadStack(1, "MainThread", (CallSiteName("Popen.wait", "/usr/lib/python3.11/subprocess.py", 1_264),))
    waiting = Stacks(1, (main,))
    began_ns = time.monotonic_ns()
    # The rank is a shell, because this process has other children.
    with subprocess.Popen(["sh", "-c", "sleep 600 & sleep 601 & wait"], start_new_session=True) as rank:
        try:
            # Before exec, a child looks like its parent.
            until(lambda: [one.name for one in commands_of(rank.pid)] == ["sleep", "sleep"])
            upload, other = commands_of(rank.pid)
            assert ChildWaits(identity_of(rank.pid), os.geteuid()).check(waiting, time.monotonic_ns()) is None
            os.kill(other.pid, signal.SIGKILL)
            until(lambda: len(commands_of(rank.pid)) == 1)
            found = ChildWaits(identity_of(rank.pid), os.geteuid()).check(waiting, time.monotonic_ns())
        finally:
            os.killpg(rank.pid, signal.SIGKILL)
    assert found is not None
    assert began_ns - SECOND < found.since_ns <= time.monotonic_ns(), "since it has begun"
    assert describe_child(found, 12.0) == f"command sleep (pid {upload.pid}), which has been running for 12.0 s"
