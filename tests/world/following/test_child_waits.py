"""The child that a rank waits for is found as soon as its stack shows that it waits for one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.job.requests.stacks import ThreadStack
from otel_torchdist.processes.children import look_at
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.names.model import CallSiteName
from otel_torchdist.world.following.child_waits import PAUSE_NS, ChildWaits
from otel_torchdist.world.model import Stacks
from tests.support.waiting import until

IN_LOADER = CallSiteName("_try_get_data", "/site-packages/torch/utils/data/dataloader.py", 1_000)


@pytest.fixture
def stuck_child(tmp_path: Path) -> Iterator[int]:
    """A child of this process that reads from a pipe in which nothing comes."""
    shard = tmp_path / "shard"
    os.mkfifo(shard)
    descriptor = os.open(shard, os.O_RDWR)
    with subprocess.Popen(["cat", str(shard)], stdout=subprocess.DEVNULL) as child:
        try:
            # While it starts, it may be seen in a read of its libraries, which soon ends.
            until(lambda: (view := look_at(child.pid)) is not None and view.is_stuck and view.file == str(shard))
            yield child.pid
        finally:
            child.kill()
            os.close(descriptor)


@pytest.mark.process
def test_child_is_found_again_at_once_after_stacks_were_asked_for_again(stuck_child: int) -> None:
    """A report may follow the new stack within milliseconds; the pause between two looks must not hide the child."""
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
    """A service of root's tells no user what children of other users' processes do, whatever pid a tape claims."""
    assert look_at(stuck_child) is not None
    waits = ChildWaits(identify(0, 0, 1, 64), os.geteuid() + 23456)
    now_ns = 10 * PAUSE_NS
    assert waits.check(Stacks(now_ns, (ThreadStack(1, "MainThread", (IN_LOADER,)),)), now_ns) is None
