"""How an attempt has ended is shown until the next one steps; it is concluded once nothing more is to be said."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.agent.reading.outcomes import AttemptEnds, Conclusions
from otel_torchdist.judge.stall.events import Event, IncidentResolved, JudgingAgent, Ruling, RunSeen, VerdictGiven
from otel_torchdist.judge.verdict.verdict import Outcome
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.node.job.agent_notes import concluded_ns
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from tests.support.tapes.fake_tape import FakeTape
from tests.support.tapes.metrics_node import METRICS
from tests.support.worlds.detectors import EVERYBODY, Watching, stalled
from tests.support.worlds.fake_world import RUN, FakeWorld

NEXT_RUN = RUN + (1 << 120)


class Shown:
    """The series of a reader whose tapes stand for the ranks of simulated worlds."""

    def __init__(self, directory: Path) -> None:
        self._metrics = NodeMetrics()
        self.ends = AttemptEnds(self._metrics)
        self.directory = directory
        self._tapes: dict[int, TapeReader] = {}

    def turn(self, *worlds: WorldSnapshot, events: Iterable[Event] = (), is_awaited: bool = False, **seen: Any) -> bool:
        """Follow a turn in which these worlds were seen."""
        for view in (view for world in worlds for view in world.ranks.values()):
            if view.nonce not in self._tapes:
                self._tapes[view.nonce] = FakeTape(self.directory, view.rank, nonce=view.nonce).reader
        runs = [RunSeen(world, seen.get("ruling"), None, seen.get("judge")) for world in worlds]
        return self.ends.update(events, runs, self._tapes, is_awaited)

    @property
    def series(self) -> list[tuple[str, str]]:
        """Verdict and ranks of each series."""
        return [
            (labels[3], labels[4])
            for labels, _ in METRICS["torchdist_attempt_ended_info"].read(self._metrics.snapshot())
        ]


@pytest.fixture
def shown(tmp_path: Path) -> Shown:
    """A reader of one job directory."""
    return Shown(tmp_path)


def killed() -> tuple[WorldSnapshot, list[Event]]:
    """A world in which rank 2 was killed and the others lost it, and what was reported of it."""
    world, numbers = stalled()
    watching = Watching(world)
    watching.until(6.0)
    world.ranks[2].die(6.0)
    watching.until(8.0)
    for rank in (0, 1, 3):
        world.ranks[rank].end(numbers[rank], 8.1, failure="RuntimeError")
        world.ranks[rank].die(8.2, TapeState.FAILED, "RuntimeError")
    watching.until(9.0)
    return world.snapshot(9.0), [event for _, event in watching.events]


def another(world: WorldSnapshot, step: int = 0, **changes: Any) -> WorldSnapshot:
    """The next attempt, in which all ranks are alive."""
    views = {
        rank: dataclasses.replace(
            view, nonce=view.nonce + 100, run=NEXT_RUN, created_ns=view.created_ns + 1, alive=True, step=step,
            state=TapeState.RUNNING, failure="", **changes
        )
        for rank, view in world.ranks.items()
    }  # fmt: skip
    return dataclasses.replace(world, run=NEXT_RUN, ranks=views)


def test_crash_is_shown_until_the_next_attempt_steps(shown: Shown) -> None:
    """Of a killed rank the verdict stays when the incident is over; attempts that only load do not remove it."""
    world, events = killed()
    assert {type(event) for event in events} >= {VerdictGiven, IncidentResolved}
    assert shown.turn(world, events=events)
    assert shown.series == [("dead", "2")]
    assert not shown.turn(world)
    assert not shown.turn(world, another(world))
    assert not shown.turn(another(world))
    assert shown.series == [("dead", "2")]
    shown.turn(another(world, step=1))
    assert shown.series == []


def test_next_attempt_that_ends_before_it_steps(shown: Shown) -> None:
    """Of attempts that crash one after the other the last one is shown."""
    world, events = killed()
    shown.turn(world, events=events)
    ended = another(world, step=0)
    gone = {rank: dataclasses.replace(view, alive=False) for rank, view in ended.ranks.items()}
    shown.turn(world, dataclasses.replace(ended, ranks=gone))
    assert shown.series == [("ended", "")]


@pytest.mark.parametrize(("state", "end"), [(TapeState.FINISHED, ("finished", "")), (TapeState.RUNNING, ("ended", ""))])
def test_end_without_a_verdict(shown: Shown, state: TapeState, end: tuple[str, str]) -> None:
    """Shown once no process is left and no verdict is pending: a job that has finished, and one that was cancelled."""
    world = FakeWorld(2)
    world.ranks[0].die(5.0, state)
    shown.turn(world.snapshot(6.0))
    assert shown.series == []
    world.ranks[1].die(6.0, state)
    shown.turn(world.snapshot(7.0), is_awaited=True)
    assert shown.series == []
    shown.turn(world.snapshot(7.0))
    assert shown.series == [end]


def test_stall_that_passes_is_no_end(shown: Shown) -> None:
    """A late rank that came after all does not count when the job is cancelled later."""
    world, numbers = stalled()
    watching = Watching(world)
    watching.until(17.0)
    late = world.ranks[2].enter(EVERYBODY, 17.0)
    for rank, number in {**numbers, 2: late}.items():
        world.ranks[rank].end(number, 17.1)
    watching.until(18.0)
    events = [event for _, event in watching.events]
    assert [event.outcome for event in events if isinstance(event, IncidentResolved)] == [Outcome.COMPLETED]
    shown.turn(world.snapshot(18.0), events=events)
    for rank in range(4):
        world.ranks[rank].die(19.0)
    shown.turn(world.snapshot(20.0))
    assert shown.series == [("ended", "")]


def test_error_that_the_program_handles(shown: Shown) -> None:
    """Where ranks go on after the failure, the end is taken back with their next step."""
    world, events = killed()
    alive = {rank: dataclasses.replace(view, alive=rank != 2) for rank, view in world.ranks.items()}
    handled = dataclasses.replace(world, ranks=alive)
    shown.turn(handled, events=events)
    assert shown.series == [("dead", "2")]
    stepped = {rank: dataclasses.replace(view, step=view.step + 1) for rank, view in alive.items()}
    shown.turn(dataclasses.replace(world, ranks=stepped))
    assert shown.series == []


def test_verdict_of_another_agent(shown: Shown) -> None:
    """An agent that does not judge shows the verdict that it was sent, also if that comes after the end."""
    world, events = killed()
    [given] = [event for event in events if isinstance(event, VerdictGiven)]
    attributes = {semconv.VERDICT: "dead", semconv.VERDICT_RANKS: "5", semconv.OPERATION: "all_reduce"}
    ruling = Ruling(given.incident, 1, given.verdict.operation_id, "rank 5 …", attributes)
    judge = JudgingAgent("node-1", "")
    shown.turn(world, judge=judge)
    assert shown.series == [("ended", "")]
    assert shown.turn(world, judge=judge, ruling=ruling)
    assert shown.series == [("dead", "5")]


def test_job_that_is_left(shown: Shown) -> None:
    """When a job directory is not read any more, nothing of it is shown."""
    world, events = killed()
    shown.turn(world, events=events)
    shown.ends.leave(shown.directory)
    assert shown.series == []


class Noted:
    """The conclusions of a reader whose tapes stand for the ranks of simulated worlds."""

    def __init__(self, directory: Path) -> None:
        self._conclusions = Conclusions()
        self.directory = directory
        self._tapes: dict[int, TapeReader] = {}

    def turn(self, *worlds: WorldSnapshot, is_awaited: bool = False) -> int:
        """Follow a turn in which these worlds were seen; returns up to which tape the job is concluded."""
        for view in _views(worlds):
            if view.nonce not in self._tapes:
                self._tapes[view.nonce] = FakeTape(self.directory, view.rank, nonce=view.nonce).reader
        self._conclusions.update([RunSeen(world, None, None, None) for world in worlds], self._tapes, is_awaited)
        return concluded_ns(self.directory)


def _views(worlds: Iterable[WorldSnapshot]) -> list[RankView]:
    return [view for world in worlds for view in world.ranks.values()]


def test_attempt_that_is_over(tmp_path: Path) -> None:
    """Not while a verdict is pending, nor while a later attempt runs."""
    noted = Noted(tmp_path)
    world, _ = killed()
    created_ns = max(view.created_ns for view in world.ranks.values())
    assert noted.turn(world, is_awaited=True) == 0
    assert noted.turn(world) == created_ns
    later = another(world)
    assert noted.turn(world, later) == created_ns
    ended = {rank: dataclasses.replace(view, alive=False) for rank, view in later.ranks.items()}
    assert noted.turn(world, dataclasses.replace(later, ranks=ended)) == created_ns + 1


def test_removed_directory(tmp_path: Path) -> None:
    """There is nowhere to note it, which is no error."""
    noted = Noted(tmp_path / "job")
    noted.directory.mkdir()
    world, _ = killed()
    noted.turn(world, is_awaited=True)
    for path in noted.directory.iterdir():
        path.unlink()
    noted.directory.rmdir()
    assert noted.turn(world) == 0
