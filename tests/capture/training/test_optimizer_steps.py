"""The steps of optimizers on a rank's tape: which are recorded, and when each of them ends."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from otel_torchdist import semconv
from otel_torchdist.capture.training import optimizer_steps
from otel_torchdist.capture.training.optimizer_steps import MAX_IN_STEP
from otel_torchdist.capture.training.steps import Steps
from otel_torchdist.tape.layout import ActivityKind, How
from otel_torchdist.tape.reading.batch import Batch
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.records.activities import Activity
from otel_torchdist.telemetry.spans.sampling import StepSampler
from otel_torchdist.telemetry.spans.steps import RankSpans
from tests.support.launch.jobs import Jobs
from tests.support.receivers.memory_sink import MemorySink
from tests.support.tapes.own_tape import OwnTape
from tests.support.tapes.recorded import RecordedTape


def steps_of(tape: RecordedTape) -> list[tuple[Activity, str]]:
    """The steps of optimizers on a tape, with their classes."""
    return [one for one in tape.activities if one[0].kind is ActivityKind.OPTIMIZER_STEP]


@pytest.mark.parametrize(
    ("way", "steps"),
    [
        ("one_optimizer", {"SGD": 5}),
        ("two_optimizers", {"SGD": 3 * 5}),
        ("zero", {"ZeroRedundancyOptimizer": 5}),
        ("two_threads", {"SGD": 1 + 4 * 5}),
        ("container", {"Container": 5}),
        ("in_backward", {"SGD": 1 + 5 * MAX_IN_STEP}),  # the first optimizer is the one that ends the steps
        ("forks", {"SGD": 5}),
        ("scaled", {"SGD": 2}),
        ("marked", {"SGD": 5}),
    ],
)
def test_which_are_recorded(jobs: Jobs, way: str, steps: dict[str, int]) -> None:
    """Every outermost step on any thread, up to a bound in each training step, with the optimizer's class."""
    [tape] = jobs.run("steps", 1, way).tapes
    found = steps_of(tape)
    assert Counter(optimizer for _, optimizer in found) == steps
    assert {activity.how for activity, _ in found} == {How.CALL}
    assert tape.lost == 0


def test_belongs_to_the_step_that_it_ends(jobs: Jobs) -> None:
    """An optimizer's step begins behind the collectives of its training step, and ends before that does."""
    [tape] = jobs.run("steps", 1, "one_optimizer").tapes
    for (activity, _), mark in zip(steps_of(tape), tape.steps, strict=True):
        last = [operation.raw for operation in tape.operations if operation.raw.step == mark.step][-1]
        assert activity.completed_ns is not None
        assert last.entered_ns < activity.entered_ns < activity.completed_ns <= mark.ended_ns
        assert activity.step == mark.step


def test_collectives_within(jobs: Jobs) -> None:
    """LBFGS calls its closure, with backward and collectives, within its step; these stay operations."""
    [tape] = jobs.run("steps", 1, "closures").tapes
    assert [optimizer for _, optimizer in steps_of(tape)] == ["LBFGS"] * 5
    for number, (activity, _) in enumerate(steps_of(tape)):
        within = [one.raw for one in tape.operations if one.raw.step == number]
        assert len(within) == 3
        assert activity.completed_ns is not None
        for operation in within:
            assert activity.entered_ns < operation.entered_ns < activity.completed_ns


def test_killed_within(jobs: Jobs) -> None:
    """A step in which its process is killed stays open on the tape, and its span says so."""
    [tape] = jobs.run("steps", 1, "killed", codes=[-9]).tapes
    assert [activity.how for activity, _ in steps_of(tape)] == [How.CALL, None]
    reader, sink = TapeReader(tape.path), MemorySink()
    spans = RankSpans(reader, sink, StepSampler(ALWAYS_ON, 1_000, 0, 1))
    now_ns = time.monotonic_ns()
    spans.consume(reader.poll(), reader.status(), now_ns)
    spans.close(now_ns)
    reader.close()
    *_, last = [span for span in sink.spans if span.name == "optimizer step"]
    assert last.error == "optimizer step was still in progress when the process was gone"
    assert last.attributes[semconv.STEP] == 1


class Rank(OwnTape):
    """Steps of this process's optimizers, recorded on a tape of its own."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.steps = Steps(lambda: 0)
        self.steps.recorder = self.recorder
        self.steps.hook(self.patches)

    def poll(self) -> Batch:
        """What is new on the tape."""
        return self.reader.poll()

    def unhook(self) -> None:
        """Undo what patches do not restore."""
        self.steps.unhook()


@pytest.fixture
def rank(memory: Path) -> Iterator[Rank]:
    """Steps of this process's optimizers are recorded."""
    with contextlib.closing(Rank(memory)) as rank:
        yield rank


def optimizer(kind: type[torch.optim.Optimizer] = torch.optim.SGD, **options: Any) -> torch.optim.Optimizer:
    """An optimizer with one parameter and its gradient."""
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return kind([parameter], **options)


def raising() -> float:
    """Fail in a closure."""
    raise ZeroDivisionError


def raise_within(one: torch.optim.Optimizer) -> None:
    """A step that is left with an exception."""
    with contextlib.suppress(ZeroDivisionError):
        one.step(raising)


def test_left_with_an_exception(rank: Rank) -> None:
    """Such a step ends, as left, no later than the next one on its thread begins; none stays open, all others count."""
    one = optimizer()
    raise_within(one)
    assert len(rank.poll().activities_entered) == 1
    one.step()
    batch = rank.poll()
    left, whole = sorted(batch.activities_ended, key=lambda activity: activity.number)
    assert (left.how, whole.how) == (How.ABANDONED, How.CALL)
    assert left.completed_ns is not None
    assert left.completed_ns <= whole.entered_ns
    assert rank.reader.open_activities() == []
    assert len(batch.steps) == 1


def test_inner_exception_is_the_outer_ones_own(rank: Rank) -> None:
    """An optimizer that catches what an inner one raises is still in its step, which ends when it returns."""
    inner = optimizer()

    class Outer(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise_within(inner)
            assert rank.poll().activities_ended == []
            super().step()
            assert rank.poll().activities_ended == []

    optimizer(torch.optim.SGD).step()  # torch hooks the class that `super()` leads to, too
    rank.poll()
    optimizer(Outer).step()
    [ended] = rank.poll().activities_ended
    assert (rank.reader.names.text(ended.detail), ended.how) == ("Outer", How.CALL)
    assert rank.reader.open_activities() == []


def test_left_and_nothing_after_it(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no other step follows, our own thread finds that the step was left; while it runs, it stays open."""
    monkeypatch.setattr(optimizer_steps, "MIN_AGE_NS", 0)
    steps = rank.steps.optimizer_steps
    entered, go_on = threading.Event(), threading.Event()

    def closure() -> float:
        entered.set()
        assert go_on.wait(30)
        raise ZeroDivisionError

    def train() -> None:
        raise_within_closure()
        finished.set()
        assert may_end.wait(30)

    def raise_within_closure() -> None:
        with contextlib.suppress(ZeroDivisionError):
            optimizer().step(closure)

    finished, may_end = threading.Event(), threading.Event()
    thread = threading.Thread(target=train)
    thread.start()
    assert entered.wait(30)
    for _ in range(5):
        steps.end_left()
    rank.poll()
    assert len(rank.reader.open_activities()) == 1
    go_on.set()
    assert finished.wait(30)
    steps.end_left()
    assert rank.poll().activities_ended == [], "once could be an accident"
    steps.end_left()
    [ended] = rank.poll().activities_ended
    assert ended.how is How.ABANDONED
    may_end.set()
    thread.join()


def test_end_of_the_tape(rank: Rank) -> None:
    """When the tape ends, steps that were left are ended, also of threads that are gone; one that runs stays open."""
    raise_within(optimizer())
    thread = threading.Thread(target=raise_within, args=[optimizer()])
    thread.start()
    thread.join()
    entered, go_on = threading.Event(), threading.Event()

    def closure() -> float:
        entered.set()
        assert go_on.wait(30)
        return 0.0

    running = threading.Thread(target=lambda: optimizer().step(closure))
    running.start()
    assert entered.wait(30)
    rank.steps.optimizer_steps.forget_all(ends_left=True)
    batch = rank.poll()
    assert [activity.how for activity in batch.activities_ended] == [How.ABANDONED] * 2
    assert len(rank.reader.open_activities()) == 1
    go_on.set()
    running.join()
    assert rank.poll().activities_ended == [], "its tape has ended"


def test_interrupted_between_record_and_number(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of a signal handler just after the record was written leaves nothing open."""
    tape, begin = rank.recorder.tape, rank.recorder.tape.begin_prepared

    def begin_and_raise(*args: Any) -> int:
        begin(*args)
        raise KeyboardInterrupt

    one = optimizer()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(tape, "begin_prepared", begin_and_raise)
        one.step()
    one.step()
    assert [activity.how for activity in rank.poll().activities_ended] == [How.ABANDONED, How.CALL]
    assert rank.reader.open_activities() == []


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # from Dynamo of torch 2.13
def test_compiled_step(rank: Rank) -> None:
    """A compiled step ends its training step as before, and is no activity: Dynamo would have to break its graph.

    On Python 3.13 it is one: there Dynamo does not trace the frame that calls hooks, ours or any others.
    """
    one = optimizer()
    step = torch.compile(one.step, backend="eager")
    for _ in range(3):
        step()
    batch = rank.poll()
    assert len(batch.steps) == 3
    assert len(batch.activities_entered) == (3 if sys.version_info >= (3, 13) else 0)
    one.step()
    assert [activity.how for activity in rank.poll().activities_ended] == [How.CALL]
