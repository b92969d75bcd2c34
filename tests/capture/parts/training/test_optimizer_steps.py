"""The recorded ends of optimizer steps that do not end as usual."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from otel_torchdist.capture.core.torch_api import HOOKED_STEP
from otel_torchdist.model.kinds import How
from otel_torchdist.tape.writer import TapeWriter
from tests.capture.parts.training.rank_here import Rank
from tests.support.interrupting import interrupted_behind


def optimizer(kind: type[torch.optim.Optimizer] = torch.optim.SGD, **options: Any) -> torch.optim.Optimizer:
    """An optimizer with one parameter and its gradient."""
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return kind([parameter], **options)


def raising() -> float:
    """Raise in a closure."""
    raise ZeroDivisionError


def raise_within(one: torch.optim.Optimizer) -> None:
    """Take a step that raises."""
    with contextlib.suppress(ZeroDivisionError):
        one.step(raising)


def test_left_with_an_exception(rank: Rank) -> None:
    """A step that raised ends as abandoned at the latest when its thread begins the next step. Other steps count."""
    one = optimizer()
    raise_within(one)
    assert len(rank.reader.poll().activities_entered) == 1
    one.step()
    batch = rank.reader.poll()
    left, whole = sorted(batch.activities_ended, key=lambda activity: activity.number)
    assert (left.how, whole.how) == (How.ABANDONED, How.CALL)
    assert left.completed_ns is not None
    assert left.completed_ns <= whole.entered_ns
    assert rank.reader.open_activities() == []
    assert len(batch.steps) == 1


def test_hooked_step() -> None:
    """The code object taken for the steps of all optimizers is what torch puts in place of their `step`."""
    step: Any = type(optimizer()).step
    assert step.__code__ is HOOKED_STEP


def test_inner_exception_is_the_outer_ones_own(rank: Rank) -> None:
    """An optimizer that catches an inner optimizer's exception is still in its step, until it returns."""
    inner = optimizer()

    class Outer(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise_within(inner)
            assert rank.reader.poll().activities_ended == []
            super().step()
            assert rank.reader.poll().activities_ended == []

    optimizer(torch.optim.SGD).step()  # torch hooks the class that `super()` leads to, too
    rank.reader.poll()
    optimizer(Outer).step()
    [ended] = rank.reader.poll().activities_ended
    assert (rank.reader.names.text(ended.detail), ended.how) == ("Outer", How.CALL)
    assert rank.reader.open_activities() == []


def test_left_and_nothing_after_it(rank: Rank) -> None:
    """If no other step follows, the rank thread ends a step that raised. A running step stays open."""
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
        steps.end_abandoned(min_age_ns=0)
    rank.reader.poll()
    assert len(rank.reader.open_activities()) == 1
    go_on.set()
    assert finished.wait(30)
    steps.end_abandoned(min_age_ns=0)
    assert rank.reader.poll().activities_ended == [], "once could be an accident"
    steps.end_abandoned(min_age_ns=0)
    [ended] = rank.reader.poll().activities_ended
    assert ended.how is How.ABANDONED
    may_end.set()
    thread.join()


def test_end_of_the_tape(rank: Rank) -> None:
    """At the end of the tape, steps that raised are ended, also of ended threads. A running step stays open."""
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
    rank.steps.optimizer_steps.forget_all(ends_abandoned=True)
    batch = rank.reader.poll()
    assert [activity.how for activity in batch.activities_ended] == [How.ABANDONED] * 2
    assert len(rank.reader.open_activities()) == 1
    go_on.set()
    running.join()
    assert rank.reader.poll().activities_ended == [], "its tape has ended"


def test_skipped_by_a_scaler(rank: Rank) -> None:
    """A skipped optimizer step ends the training step like a real one. A second optimizer's step does not."""
    first, second = optimizer(), optimizer()
    scaler = torch.amp.GradScaler("cpu")
    for overflows in (first, second, None):
        scaler.scale(torch.ones(1))
        for one in (first, second):
            value = math.inf if one is overflows else 1.0
            one.param_groups[0]["params"][0].grad = torch.full((2,), value)
            scaler.step(one)
        scaler.update()
    assert [mark.skipped for mark in rank.reader.poll().steps] == [True, False, False]


def test_interrupted_between_record_and_number(rank: Rank) -> None:
    """A signal handler's exception right after the record is written leaves no record open."""
    one = optimizer()
    with interrupted_behind(TapeWriter.begin_prepared):
        one.step()
    one.step()
    assert [activity.how for activity in rank.reader.poll().activities_ended] == [How.ABANDONED, How.CALL]
    assert rank.reader.open_activities() == []


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # from Dynamo of torch 2.13
def test_compiled_step(rank: Rank) -> None:
    """A compiled optimizer step ends its training step but is no activity, because that would break Dynamo's graph.

    On Python 3.13 it is an activity, because Dynamo does not trace the frame that calls hooks there.
    """
    one = optimizer()
    step = torch.compile(one.step, backend="eager")
    for _ in range(3):
        step()
    batch = rank.reader.poll()
    assert len(batch.steps) == 3
    assert len(batch.activities_entered) == (3 if sys.version_info >= (3, 13) else 0)
    one.step()
    assert [activity.how for activity in rank.reader.poll().activities_ended] == [How.CALL]


def frames_compiled() -> int:
    """Return the frames that Dynamo compiles in three steps of an optimizer."""
    from torch._dynamo.utils import counters  # takes a second, which all processes that collect tests would spend

    torch._dynamo.reset()
    counters.clear()
    step = torch.compile(optimizer().step, backend="eager")
    for _ in range(3):
        step()
    return counters["frames"]["total"]


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # as above
def test_nothing_of_ours_is_compiled(memory: Path) -> None:
    """Dynamo runs our optimizer hooks and their callees without compiling them."""
    without_us = frames_compiled()
    with contextlib.closing(Rank(memory)):
        assert 0 < frames_compiled() <= without_us
