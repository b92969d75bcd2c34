"""Which tapes form a run, and how a run is found."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_torchdist.model.kinds import RunIdState, TapeState
from otel_torchdist.model.rank_state.lives import Death, RankLife
from otel_torchdist.node.job.runs.lives import write_death
from otel_torchdist.node.job.runs.runs import Run, RunIndex, SeveralRunsError, index_of, select
from tests.support.commands.asking import ask
from tests.support.tapes.fake_tape import FakeTape

FIRST, SECOND = 0x1A << 120, 0x1B << 120


@pytest.fixture
def directory(memory: Path) -> Path:
    """A job directory."""
    path = memory / "job-000000000000000a"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def look(directory: Path) -> Iterator[Callable[[], RunIndex]]:
    """Reads the directory."""
    shelves: list[RunIndex] = []

    def look() -> RunIndex:
        shelves.append(index_of([directory]))
        return shelves[-1]

    yield look
    for index in shelves:
        index.close()


def leave(directory: Path, rank: int, run_id: int, id_state: RunIdState = RunIdState.AGREED) -> None:
    """Leave the tape of a rank that died."""
    leave_together(directory, (rank, run_id, id_state))


def leave_together(directory: Path, *ranks: tuple[int, int, RunIdState]) -> None:
    """Leave the tapes of ranks that lived at the same time."""
    living = [FakeTape(directory, rank, 2, run_id, id_state, capacity=64) for rank, run_id, id_state in ranks]
    for one in living:
        one.writer.beat()
        one.reader.close()
        one.writer.close()
    time.sleep(0.001)  # the next one begins later, by whatever clock


def facts(run: Run) -> tuple[int, tuple[int, ...]]:
    """The facts that distinguish runs."""
    return run.run_id, run.ranks


def test_attempts_in_one_directory(directory: Path, look: Callable[[], RunIndex]) -> None:
    """A launcher's attempts are separate runs, the last one first; the newest tape of each rank counts."""
    for run_id in (FIRST, SECOND):
        for rank in (1, 0):
            leave(directory, rank, run_id)
    leave(directory, 0, SECOND)
    runs = look().runs
    assert [facts(run) for run in runs] == [(SECOND, (0, 1)), (FIRST, (0, 1))]
    newest = runs[0].tapes[0].identity.monotonic_ns
    assert newest == max(tape.identity.monotonic_ns for run in runs for tape in run.tapes)
    assert runs[0].life is RankLife.DEAD


def test_exit_code_that_the_agent_recorded(directory: Path, look: Callable[[], RunIndex]) -> None:
    """A run whose program ended with an error code has failed, although its tape only shows that it ended."""
    tape = FakeTape(directory, 0, 1, FIRST, capacity=64)
    tape.writer.finish(TapeState.FINISHED)
    lives: list[RankLife] = []
    for code in (0, 3):
        write_death(tape.writer.path, Death(1, status=code << 8))
        lives.append(look().runs[0].life)
    tape.reader.close()
    assert lives == [RankLife.FINISHED, RankLife.FAILED]


def test_rank_that_never_knew_its_run(directory: Path, look: Callable[[], RunIndex]) -> None:
    """A rank without a run id joins the run that it lived alongside and that lacks it; else it is a run by itself."""
    leave_together(directory, (0, FIRST, RunIdState.AGREED), (1, 0, RunIdState.NONE))
    leave(directory, 0, SECOND)
    leave(directory, 1, SECOND)
    assert [facts(run) for run in look().runs] == [(SECOND, (0, 1)), (FIRST, (0, 1))]
    leave(directory, 1, 0, RunIdState.NONE)
    assert [facts(run) for run in look().runs] == [(0, (1,)), (SECOND, (0, 1)), (FIRST, (0, 1))]


def test_id_of_the_attempt_before(directory: Path, look: Callable[[], RunIndex]) -> None:
    """Ranks that still have the id of the previous attempt are not shown together with its dead."""
    leave(directory, 0, FIRST)
    leave(directory, 1, FIRST)
    leave(directory, 1, FIRST, RunIdState.PROVISIONAL)
    assert [facts(run) for run in look().runs] == [(FIRST, (1,))]


def test_select(directory: Path, look: Callable[[], RunIndex]) -> None:
    """By as many digits as needed, in either case; too few are an error that names the matches."""
    leave(directory, 0, FIRST)
    leave(directory, 0, SECOND)
    runs = look().runs
    found = select(runs, "1A0")
    assert found is not None
    assert facts(found) == (FIRST, (0,))
    assert select(runs, "2") is None
    with pytest.raises(SeveralRunsError, match="2 runs begin with 1: 1b000000, 1a000000"):
        select(runs, "1")


def test_copy_on_a_disk(directory: Path, memory: Path, tmp_path: Path) -> None:
    """A copied job directory is diagnosed like the first."""
    one = FakeTape(directory, 0, 1, FIRST)
    one.run(at=time.monotonic_ns())
    one.writer.finish(TapeState.FINISHED)
    one.reader.close()
    one.writer.close()
    copy = shutil.copytree(directory, tmp_path / "copy")
    answers = [ask(memory), ask(memory, "--run-dir", copy)]
    assert [answer.code for answer in answers] == [0, 0]
    first, second = (answer.out.replace(str(copy), str(directory)).splitlines() for answer in answers)
    assert first[:2] + first[3:] == second[:2] + second[3:]  # the third line states how long ago it was
