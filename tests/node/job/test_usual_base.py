"""The usual name in /dev/shm may be another user's: tapes are then beside it, where every reader finds them."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry._logs import NoOpLogger
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from otel_torchdist.agent.agent import Agent
from otel_torchdist.agent.node import NodeWatch
from otel_torchdist.config import Config
from otel_torchdist.node.job.directory import MEMORY, USUAL_BASES
from otel_torchdist.system.files.locks import exclusive_lock
from otel_torchdist.telemetry.export.outputs import Outputs
from tests.support.receivers.memory_sink import MemorySink

USER = 1_000_000_000 + os.getpid()
THIEF = USER + 1_000_000_000
USUAL = MEMORY / f"otel-torchdist-{USER}"
RANKS = 4
RANK = """
import os, sys
from otel_torchdist.config import Config
from otel_torchdist.node.job.directory import base_directory, job_directory
from otel_torchdist.node.job.runs.runs import tape_directory
from otel_torchdist.node.job.directory import usual_base
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.writer import TapeWriter

user = int(sys.argv[2])  # only now: other users may be unable to read Python's modules
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
print("ready", flush=True)
sys.stdin.readline()
base = base_directory(None, False)
tape = TapeWriter(job_directory(base, "job-0123456789abcdef"), identify(int(sys.argv[1]), 0, 4, 64))
tape.beat()
print(base, tape_directory(Config(tape_dir=usual_base())), flush=True)
sys.stdin.readline()
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")


def start(rank: int) -> subprocess.Popen[str]:
    """Start a rank of the user."""
    return subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(USER)], stdin=-1, stdout=-1, text=True)


def answer_of(rank: subprocess.Popen[str]) -> list[str]:
    """Return the next line of a rank."""
    assert rank.stdout is not None
    return rank.stdout.readline().split()


@pytest.fixture
def ranks() -> Iterator[list[subprocess.Popen[str]]]:
    """Ranks of the user, which wait for a line before they create their tapes."""
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [shutil.rmtree(path) for path in MEMORY.glob(f"{USUAL.name}*")])
        found = [stack.enter_context(start(rank)) for rank in range(RANKS)]
        stack.callback(lambda: [rank.kill() for rank in found])
        assert [answer_of(rank) for rank in found] == [["ready"]] * RANKS
        yield found


def bases_of(ranks: list[subprocess.Popen[str]]) -> set[Path]:
    """Let the ranks create their tapes at the same time; returns where they do, and where they would look for them."""
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("\n")
        rank.stdin.flush()
    return {Path(name) for rank in ranks for name in answer_of(rank)}


def take_name() -> None:
    """Create the user's usual directory as somebody else."""
    USUAL.mkdir(0o700)
    os.chown(USUAL, THIEF, THIEF)


def test_usual_place(ranks: list[subprocess.Popen[str]]) -> None:
    """Nothing changes where nobody has taken the name."""
    assert bases_of(ranks) == {USUAL}


@pytest.mark.parametrize("hindered", [False, True])
def test_name_that_another_user_has_taken(ranks: list[subprocess.Popen[str]], hindered: bool) -> None:
    """All ranks that start at once choose one directory of their user's; readers and the node's service find it.

    Somebody who holds the lock by which they take turns does not change that.
    """
    take_name()
    with exclusive_lock(MEMORY) if hindered else contextlib.nullcontext():
        [base] = bases_of(ranks)
    facts = base.lstat()
    assert USUAL_BASES.fullmatch(base.name) and base.name.startswith(f"{USUAL.name}-")
    assert (facts.st_uid, stat.S_IMODE(facts.st_mode)) == (USER, 0o711)
    outputs = Outputs(MemorySink(), ALWAYS_ON, (), NoOpLogger("test"), None, serves_metrics=False)
    agent = Agent(Config(machine=False, critical_path=False), lambda: outputs)
    try:
        NodeWatch(agent, None, 60.0).search()
        [directory] = [one for one in agent.directories if one.parent.name.startswith(USUAL.name)]
        assert directory.parent == base
    finally:
        agent.close()


def test_link_under_that_name(ranks: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    """A link of another user's is not followed, to wherever it leads."""
    USUAL.symlink_to(tmp_path)
    os.chown(USUAL, THIEF, THIEF, follow_symlinks=False)
    try:
        [base] = bases_of(ranks)
        assert base.name.startswith(f"{USUAL.name}-")
    finally:
        USUAL.unlink()


def test_directories_that_others_put_beside_it(ranks: list[subprocess.Popen[str]]) -> None:
    """A directory with the name of a substitute counts only if it is the user's."""
    take_name()
    planted = USUAL.with_name(f"{USUAL.name}-{0:016x}")
    planted.mkdir()
    os.chown(planted, THIEF, THIEF)
    [base] = bases_of(ranks)
    assert base != planted and base.lstat().st_uid == USER
