"""When paths are looked for, and what becomes of them."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.agent.path_watch.child import Child, NodeCalls
from otel_torchdist.agent.path_watch.steps import StepRange, histories_in
from otel_torchdist.agent.path_watch.watch import (
    DEFAULT_PACE,
    MIN_STEPS,
    Credit,
    Pace,
    PathWatch,
    RunToWatch,
    StepsResponder,
)
from otel_torchdist.judge.stall.events import Event
from otel_torchdist.judge.stall.findings.slow import PathMeasured
from otel_torchdist.model.reports.finding import Finding, FindingOver
from otel_torchdist.model.snapshot import WorldSnapshot
from tests.agent.path_watch.written import write
from tests.support.tapes.written_world import WrittenWorld
from tests.support.waiting import until
from tests.support.worlds.fake_world import RUN, FakeWorld

pytestmark = pytest.mark.process
STEPS = 64
QUICK = Pace(check_s=0.05, first_wait_s=0.0, credit_s=100.0, persistence_s=0.0)
"""Does not wait between two paths."""


@pytest.fixture(scope="module")
def tapes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Tapes of four ranks, of which rank 3 is slow in all steps."""
    return tuple(write(WrittenWorld(ranks=4, steps=STEPS, slow=3), tmp_path_factory.mktemp("watch")))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """The same without a slow rank."""
    world = WrittenWorld(ranks=4, steps=STEPS, late_ms=0.0)
    return tuple(write(world, tmp_path_factory.mktemp("healthy")))


@pytest.fixture
def watch() -> Iterator[PathWatch]:
    """A watch of jobs on one node."""
    watch = PathWatch(lambda run, steps: [], QUICK)
    yield watch
    watch.stop()
    until(lambda: not [one for one in threading.enumerate() if one.name == "torchdist-paths"])


PATIENT_S = 60.0
"""Time enough for answers: what makes them has a low priority."""


def world_at(step: int) -> WorldSnapshot:
    """Four ranks that are in this step."""
    snapshot = FakeWorld(4).snapshot(1.0)
    ranks = {rank: dataclasses.replace(view, step=step) for rank, view in snapshot.ranks.items()}
    return dataclasses.replace(snapshot, ranks=ranks)


def seen_at(watch: PathWatch, step: int, tapes: tuple[Path, ...]) -> list[Event]:
    """What is found when the run has come to a step."""
    watch.update([RunToWatch(0, world_at(step), tapes)])
    found: list[Event] = []

    def measured() -> bool:
        found.extend(watch.events())
        return any(isinstance(event, PathMeasured) for event in found)

    until(measured, 60)
    return found


def test_found_three_times_and_reported_once(
    watch: PathWatch, tapes: tuple[Path, ...], healthy: tuple[Path, ...]
) -> None:
    """Each path is of new steps; the third reports the rank, and after three without it, it is gone."""
    found = [seen_at(watch, step, tapes) for step in (20, 30, 40)]
    assert [[type(event) for event in events] for events in found] == [
        [PathMeasured], [PathMeasured], [PathMeasured, Finding],
    ]  # fmt: skip
    slow = found[2][1]
    assert isinstance(slow, Finding)
    assert (slow.ranks, slow.run) == ((3,), RUN)
    later = [event for step in (48, 56, STEPS) for event in seen_at(watch, step, healthy)]
    assert [type(event) for event in later] == [PathMeasured] * 3 + [FindingOver]


def test_nothing_before_there_are_enough_steps(watch: PathWatch, tapes: tuple[Path, ...]) -> None:
    """The first steps are not steady, and a few are not enough."""
    watch.update([RunToWatch(0, world_at(MIN_STEPS + 2), tapes)])
    threading.Event().wait(0.5)
    assert watch.events() == []


def test_paths_take_a_bounded_share_of_a_core() -> None:
    """After the first credit is spent, a hundred times as long must pass."""
    credit = Credit(DEFAULT_PACE, 0.0)
    assert credit.is_left(0.0)
    credit.take(DEFAULT_PACE.credit_s + 1)
    assert not credit.is_left(99)
    assert credit.is_left(101)
    credit.is_left(1e9)
    credit.take(DEFAULT_PACE.credit_s + 0.01)
    assert not credit.is_left(1e9)


def test_answers_to_other_agents(tapes: tuple[Path, ...]) -> None:
    """Only for runs that are read here, and only to questions."""
    steps = StepsResponder(PATIENT_S)
    question = StepRange(50, 59).to_bytes()
    assert steps.answer(RUN, question) is None
    steps.update({RUN: tapes})
    assert steps.answer(RUN, b"all of it") is None
    answer = steps.answer(RUN, question)
    assert answer is not None
    assert [history.rank for history in histories_in(answer, 4)] == [0, 1, 2, 3]


def test_one_answer_at_a_time(tapes: tuple[Path, ...]) -> None:
    """Whatever another agent sends, no more than one process is started for it."""
    answers: list[bytes | None] = []

    class LateChild(Child):
        """Answers after the others."""

        def segments(self, timeout_s: float) -> bytes:
            until(lambda: len(answers) == 4)
            return super().segments(timeout_s)

    steps = StepsResponder(PATIENT_S, LateChild)
    steps.update({RUN: tapes})
    threads = [
        threading.Thread(target=lambda: answers.append(steps.answer(RUN, StepRange(50, 59).to_bytes())))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(answer is not None for answer in answers) == 1


def test_other_nodes_are_asked_for_the_same_steps(tapes: tuple[Path, ...]) -> None:
    """The path is found from the calls of this node and those that the others send."""
    asked: list[tuple[int, StepRange]] = []
    others = StepsResponder(PATIENT_S)
    others.update({RUN: tapes[2:]})

    def ask(run: int, steps: StepRange) -> list[NodeCalls]:
        asked.append((run, steps))
        return [NodeCalls(others.answer(run, steps.to_bytes()) or b"", 2)]

    watch = PathWatch(ask, QUICK)
    [measured] = seen_at(watch, 60, tapes[:2])
    watch.stop()
    assert asked == [(RUN, StepRange(44, 59))]
    assert isinstance(measured, PathMeasured)
    assert max(measured.lengths.ranks, key=lambda rank: measured.lengths.ranks[rank]) == 3


def test_a_path_that_cannot_be_found_costs_credit(tapes: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """If the process cannot be started or fails, it is not started again and again."""
    monkeypatch.setattr(sys, "path", ["/nowhere"])
    asked: list[StepRange] = []

    def ask(run: int, steps: StepRange) -> list[NodeCalls]:
        asked.append(steps)
        time.sleep(0.3)
        return []

    watch = PathWatch(ask, Pace(check_s=0.01, first_wait_s=0.0, credit_s=0.2))
    watch.update([RunToWatch(0, world_at(20), tapes)])
    until(lambda: asked)
    for step in (30, 40, 50):
        watch.update([RunToWatch(0, world_at(step), tapes)])
        time.sleep(0.2)
    watch.stop()
    assert len(asked) == 1
    assert watch.events() == []
