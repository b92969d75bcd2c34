"""The archive of real jobs: every operation once, whatever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_torchdist.model.kinds import Kernel
from otel_torchdist.sources.archive.reading import runs_in
from otel_torchdist.sources.history.tapes import history_of
from otel_torchdist.tape.reading.reader import TapeReader
from tests.agent.training import RANKS, WORKERS, Training, environment
from tests.sources.archive.opened import histories_in, times_archived
from tests.support.native.native_library import environ_of
from tests.support.tapes.recorded import read_tapes
from tests.support.waiting import until

NO_READER = {"OTEL_PYTHON_TORCHDIST_READER": "none"}
ARCHIVE = "OTEL_PYTHON_TORCHDIST_ARCHIVE"


def archiving_agent(training: Training, archive: Path) -> subprocess.Popen[bytes]:
    """Start an agent that writes small segments."""
    [directory] = training.base.glob("job-*")
    return subprocess.Popen(
        [sys.executable, str(WORKERS / "small_segments.py"), "agent", "--run-dir", str(directory), "--keep", "0"],
        env=environment(training.base, training.receiver) | {ARCHIVE: str(archive)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def segments(archive: Path) -> int:
    """How many segments an archive has; the agent may be writing another one."""
    runs, _ = runs_in([archive])
    return sum(len(rank.locations) for run in runs for rank in run.ranks)


def check_like_tapes(base: Path, archive: Path) -> None:
    """Each operation that has ended is archived once, and a history of the archive is that of the tape."""
    archived = histories_in(archive)
    tapes = sorted((TapeReader(path) for path in base.rglob("*.tape")), key=lambda tape: tape.identity.rank)
    assert len(archived) == len(tapes) == RANKS
    for tape, history, times in zip(tapes, archived, times_archived(archive).values(), strict=True):
        recorded = history_of(tape)
        tape.close()
        assert history.operations == recorded.operations
        assert (history.steps, history.activities) == (recorded.steps, recorded.activities)
        assert (history.rank, history.world_size, history.host, history.clock, history.lost) == (
            recorded.rank, RANKS, recorded.host, recorded.clock, 0,
        )  # fmt: skip
        assert {group.key for group in history.groups} == {group.key for group in recorded.groups}
        ended = [view.record.number for view in recorded.operations if not view.record.is_open]
        assert times == dict.fromkeys(ended, 1)


@pytest.mark.thorough
def test_killed_agents_and_ranks(train: Callable[..., Training], tmp_path: Path) -> None:
    """Two agents in a row are killed, then all ranks: the last agent leaves an archive of every operation, once."""
    archive = tmp_path / "archive"
    training = train(environ=NO_READER, pause_s=0.005)
    training.joined_at()
    written = 0
    for _ in range(2):
        agent = archiving_agent(training, archive)
        until(lambda before=written: segments(archive) > before + 2)
        agent.kill()
        agent.wait(60)
        written = segments(archive)
    agent = archiving_agent(training, archive)
    until(lambda: segments(archive) > written)
    training.kill()
    assert agent.wait(40) == 0
    check_like_tapes(training.base, archive)


@pytest.mark.thorough
def test_both_killed_at_once(train: Callable[..., Training], tmp_path: Path) -> None:
    """If agent and ranks are killed together, everything up to the last segment is there; an agent adds the rest."""
    archive = tmp_path / "archive"
    training = train(environ=NO_READER, pause_s=0.005)
    training.joined_at()
    agent = archiving_agent(training, archive)
    until(lambda: segments(archive) > 6)
    os.kill(agent.pid, signal.SIGKILL)
    training.kill()
    agent.wait(60)
    for history, times in zip(histories_in(archive), times_archived(archive).values(), strict=True):
        assert history.lost == 0
        assert {view.record.number for view in history.operations if not view.record.is_open} == times.keys()
        assert len(times) >= 80
    assert archiving_agent(training, archive).wait(40) == 0
    check_like_tapes(training.base, archive)


@pytest.mark.parametrize(("home", "kernel"), [("agent", "native"), ("thread", "python")])
def test_agent_and_threads_by_themselves(
    train: Callable[..., Training], tmp_path: Path, home: str, kernel: str
) -> None:
    """The setting alone is enough, for the agent that ranks start and for threads of the ranks, with both kernels."""
    archive = tmp_path / home
    environ = {"OTEL_PYTHON_TORCHDIST_READER": home, "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "0"}
    training = train(environ={ARCHIVE: str(archive), **environ, **environ_of(kernel)})
    training.joined_at()
    assert training.end() > 0
    until(lambda: not training.agents())
    check_like_tapes(training.base, archive)
    assert {tape.identity.kernel for tape in read_tapes(training.base)} == {Kernel[kernel.upper()]}
