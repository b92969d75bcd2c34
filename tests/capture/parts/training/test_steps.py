"""The ends of training steps on the tapes of jobs, and the optimizer steps within them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable

import pytest

from otel_torchdist.capture.parts.optimizer_steps import MAX_IN_STEP
from otel_torchdist.model.history import Activity
from otel_torchdist.model.kinds import ActivityKind, How
from tests.support.launch.jobs import Jobs
from tests.support.native.both_kernels import NATIVE_LATER
from tests.support.tapes.recorded import RecordedTape

pytestmark = NATIVE_LATER
USUAL = [3, 6, 9, 12, 15]
OVERFLOWS = [65536.0, 32768.0, 32768.0, 16384.0, 16384.0]
"""The scale of the loss where each other step overflows, beginning with the first."""
TapeOf = Callable[[str], RecordedTape]


@pytest.fixture(scope="module")
def tape_of(jobs: Jobs) -> TapeOf:
    """The tape of a rank that trains in a way."""
    return functools.cache(lambda way: jobs.run("steps", 1, way, codes=[-9 * (way == "killed")]).tapes[0])


def optimizer_steps(tape: RecordedTape) -> list[tuple[Activity, str]]:
    """The steps of optimizers on a tape, with their classes."""
    return [one for one in tape.activities if one[0].kind is ActivityKind.OPTIMIZER_STEP]


@pytest.mark.parametrize(
    ("way", "sequences", "scales"),
    [
        ("one_optimizer", USUAL, None),
        ("two_optimizers", USUAL, None),
        ("zero", USUAL, None),
        ("step_raises", USUAL, None),
        ("begins_anew", USUAL, None),
        ("phases", [3, 6, 54, 57, 60], None),  # the sixteenth step of the second optimizer is the first that counts
        ("two_threads", [0, *range(3, 33, 3)], None),
        ("in_backward", USUAL, None),
        ("container", USUAL, None),
        ("closures", USUAL, None),
        ("scaled", USUAL, OVERFLOWS),
        ("scaled_by_fsdp", [4, 8, 12, 16, 20], OVERFLOWS),
        ("scaled_and_wrapped", USUAL, OVERFLOWS),
        ("scaled_and_fused", USUAL, [None, *OVERFLOWS[1:]]),  # called without asking the scaler
        ("scaler_off", USUAL, None),
        ("marked", USUAL, None),  # the optimizer has ended the step of the first mark
        ("windows", [64, 128, 192, 256, 320], None),
        ("windows_until_optimizer", [64, 67, 131, 195, 259], None),
    ],
)
def test_steps(tape_of: TapeOf, way: str, sequences: list[int], scales: list[float | None] | None) -> None:
    """Each kind of training has the expected steps, with sequence number and loss scale at each end."""
    tape = tape_of(way)
    assert [(mark.step, mark.sequence) for mark in tape.steps] == list(enumerate(sequences))
    assert tape.status.step == len(sequences)
    assert [mark.scale for mark in tape.steps] == (scales or [None] * len(sequences))
    for operation in tape.operations:
        assert operation.raw.step == sum(mark.number < operation.raw.number for mark in tape.steps)
        assert operation.raw.step == sum(mark.sequence < operation.raw.sequence for mark in tape.steps)


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
def test_steps_of_optimizers(tape_of: TapeOf, way: str, steps: dict[str, int]) -> None:
    """Every outermost optimizer step on any thread is recorded with its class, up to a maximum per training step."""
    found = optimizer_steps(tape_of(way))
    assert Counter(optimizer for _, optimizer in found) == steps
    assert {activity.how for activity, _ in found} == {How.CALL}
    assert tape_of(way).lost == 0


def test_optimizer_belongs_to_the_step_that_it_ends(tape_of: TapeOf) -> None:
    """An optimizer step starts after the collectives of the training step that it ends, and is part of it."""
    tape = tape_of("one_optimizer")
    for (activity, _), mark in zip(optimizer_steps(tape), tape.steps, strict=True):
        last = [operation.raw for operation in tape.operations if operation.raw.step == mark.step][-1]
        assert activity.completed_ns is not None
        assert last.entered_ns < activity.entered_ns < activity.completed_ns <= mark.ended_ns
        assert activity.step == mark.step


def test_collectives_within_an_optimizer(tape_of: TapeOf) -> None:
    """LBFGS calls its closure, with backward and collectives, in its step. These are recorded as operations."""
    tape = tape_of("closures")
    assert [optimizer for _, optimizer in optimizer_steps(tape)] == ["LBFGS"] * 5
    for number, (activity, _) in enumerate(optimizer_steps(tape)):
        within = [one.raw for one in tape.operations if one.raw.step == number]
        assert len(within) == 3
        assert activity.completed_ns is not None
        for operation in within:
            assert activity.entered_ns < operation.entered_ns < activity.completed_ns


def test_killed_within_an_optimizer(tape_of: TapeOf) -> None:
    """A step in which the process is killed stays open on the tape."""
    assert [activity.how for activity, _ in optimizer_steps(tape_of("killed"))] == [How.CALL, None]
