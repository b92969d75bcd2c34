"""How ranks keep an agent running: one of them starts it, and starts it again when it ends, but not forever."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from otel_torchdist.agent.launch.keeper import MAX_STARTS, STARTS_WITHIN_S, AgentKeeper, KeeperSurroundings
from otel_torchdist.node.job.directory import READER_LOCK_NAME, START_LOCK_NAME
from tests.support.locks import held_elsewhere
from tests.support.tapes.tapes import open_descriptors, settled_descriptors


@dataclass
class Clock:
    """A clock that the test advances."""

    seconds: float = 1000.0

    def monotonic_ns(self) -> int:
        """The time in nanoseconds."""
        return int(self.seconds * 1e9)


@dataclass
class Starts:
    """Stands in for starting a process; the tests check when and by which rank one is started.

    Attributes:
        at: Times at which an agent was started.
        problem: What a start returns.
        is_put_off: Whether the program waits for any of its children.
        without_agent: Base directories of jobs that no agent of this user will read.
    """

    clock: Clock
    at: list[float] = field(default_factory=list[float])
    problem: str = ""
    is_put_off: bool = False
    without_agent: list[Path] = field(default_factory=list[Path])

    def start(self, directory: Path, detached: Callable[[], object], last: bool, follows: bool) -> str:
        """Record a start."""
        self.at.append(self.clock.seconds)
        detached()
        return self.problem

    def keeper(self) -> AgentKeeper:
        """A keeper that starts agents here."""
        surroundings = KeeperSurroundings(self.start, lambda: self.is_put_off, self.clock.monotonic_ns)
        return AgentKeeper(surroundings, self.without_agent.append)


@pytest.fixture
def starts() -> Starts:
    """Records the starts."""
    return Starts(Clock())


@pytest.fixture
def kept(starts: Starts, tmp_path: Path) -> Iterator[AgentKeeper]:
    """A keeper of a job directory."""
    keeper = starts.keeper()
    keeper.keep(tmp_path)
    yield keeper
    keeper.close()


def look(kept: AgentKeeper, starts: Starts, seconds: float) -> None:
    """Let time pass, with a check every second."""
    for _ in range(int(seconds)):
        kept.check()
        for thread in threading.enumerate():
            if thread.name == "otel-torchdist-start":
                thread.join()
        starts.clock.seconds += 1.0


def test_agents_that_fail_are_put_off(kept: AgentKeeper, starts: Starts, caplog: pytest.LogCaptureFixture) -> None:
    """An agent that never begins to read is started five times with growing pauses, and again later."""
    look(kept, starts, 200)
    assert len(starts.at) == MAX_STARTS
    pauses = [later - earlier for earlier, later in zip(starts.at, starts.at[1:], strict=False)]
    assert pauses == sorted(pauses)
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "has exited 5 times within 10 minutes and is not restarted until" in warning.getMessage()
    look(kept, starts, STARTS_WITHIN_S - 205)
    assert len(starts.at) == MAX_STARTS
    look(kept, starts, STARTS_WITHIN_S)
    assert MAX_STARTS < len(starts.at) <= 3 * MAX_STARTS
    for begun in starts.at:
        assert sum(begun <= other < begun + STARTS_WITHIN_S for other in starts.at) <= MAX_STARTS
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


def test_programs_that_follow_each_other_get_an_agent_each(starts: Starts, tmp_path: Path) -> None:
    """Only the starts of the same program count: many short ones may use one job directory, one after the other."""
    for nth in range(2 * MAX_STARTS):
        keeper = starts.keeper()
        keeper.keep(tmp_path)
        look(keeper, starts, 1)
        keeper.close()
        assert len(starts.at) == nth + 1


def test_nothing_is_started_beside_an_agent(kept: AgentKeeper, starts: Starts, tmp_path: Path) -> None:
    """While the lock is held, nothing is started; once it is released, an agent is started at once."""
    with held_elsewhere(tmp_path / READER_LOCK_NAME):
        look(kept, starts, 20)
        assert starts.at == []
        assert starts.without_agent == []
    look(kept, starts, 2)
    assert len(starts.at) == 1


def test_what_cannot_be_started_is_not_tried_again(
    kept: AgentKeeper, starts: Starts, caplog: pytest.LogCaptureFixture
) -> None:
    """If no process can be created, one warning gives the reason."""
    starts.problem = "no such file"
    look(kept, starts, 60)
    assert len(starts.at) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "the agent cannot be started (no such file): nothing of this job is exported"
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_reader_of_another_user(kept: AgentKeeper, starts: Starts, tmp_path: Path) -> None:
    """Beside a service that reads the jobs of all users no agent is started, and the rank is told that it has none."""
    with held_elsewhere(tmp_path / READER_LOCK_NAME, user=65534):
        look(kept, starts, 3)
        assert starts.at == []
        assert starts.without_agent == [tmp_path.parent]


def test_rank_is_told_that_it_has_no_agent(starts: Starts, tmp_path: Path) -> None:
    """It is told when an agent cannot be started, or has failed too often; not when one is about to read."""
    keeper = starts.keeper()
    keeper.keep(tmp_path)
    look(keeper, starts, 3)
    assert starts.without_agent == []
    look(keeper, starts, 200)
    assert starts.without_agent == [tmp_path.parent]
    keeper.close()
    starts.problem = "no such file"
    other = starts.keeper()
    other.keep(tmp_path)
    look(other, starts, 3)
    assert starts.without_agent == [tmp_path.parent] * 2
    other.close()


def test_one_rank_of_many_starts_it(starts: Starts, tmp_path: Path, kept: AgentKeeper) -> None:
    """While another rank is starting the agent, this one waits."""
    with held_elsewhere(tmp_path / START_LOCK_NAME):
        look(kept, starts, 5)
        assert starts.at == []
    look(kept, starts, 1)
    assert len(starts.at) == 1


def test_files_are_closed(starts: Starts, tmp_path: Path) -> None:
    """A keeper that moves on to another directory, or ends, leaves no descriptor open."""
    before = settled_descriptors()
    kept = starts.keeper()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        kept.keep(tmp_path / name)
        kept.check()
    kept.close()
    assert open_descriptors() == before


def test_a_program_that_waits_for_its_children_is_left_alone(
    kept: AgentKeeper, starts: Starts, caplog: pytest.LogCaptureFixture
) -> None:
    """While the program is in an `os.wait()` no agent is started; after half a minute one warning gives the reason."""
    starts.is_put_off = True
    look(kept, starts, 200)
    assert starts.at == []
    [warning] = caplog.records
    assert "while this process waits for any of its children (os.wait)" in warning.getMessage()
    starts.is_put_off = False
    look(kept, starts, 1)
    assert len(starts.at) == 1


def test_descriptors_that_the_program_closes(
    kept: AgentKeeper, starts: Starts, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The program's files that get their numbers are neither truncated nor closed, and agents are started as before."""
    look(kept, starts, 3)
    folder = tmp_path / "of the program"
    folder.mkdir()
    numbers = [int(one.split(":")[0]) for one in open_descriptors() if ".lock" in one and str(tmp_path) in one]
    assert len(numbers) == 4
    for number in numbers:
        (folder / str(number)).write_text("checkpoint")
        with (folder / str(number)).open("r+") as file:
            os.dup2(file.fileno(), number)
    look(kept, starts, 20)
    kept.close()
    for number in numbers:
        assert os.path.samestat(os.fstat(number), (folder / str(number)).stat())
        os.close(number)
    assert {path.read_text() for path in folder.iterdir()} == {"checkpoint"}
    assert len(starts.at) == 2
    assert caplog.messages == []
