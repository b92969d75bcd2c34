"""Comparisons: intervals, what they find between two real runs, and what they do not find without a change."""

from __future__ import annotations

import random

import pytest

from otel_torchdist.runs import RunError, compare, open_run
from otel_torchdist.runs.comparison.comparison import ComparedSide, comparison_of
from otel_torchdist.runs.comparison.intervals import batch_means, student_quantile, welch
from otel_torchdist.runs.comparison.samples import OperationKey, OperationSamples, RunSamples
from tests.runs.conftest import COMPUTE_MS, STEPS, RecordedJobs
from tests.runs.test_opening import DUMPS, TRACE

KEY = OperationKey("all_reduce", "replicas", "1MiB")


def test_quantiles_of_t() -> None:
    """Half widths agree with scipy's to a part in 100,000, for any number of degrees of freedom from 3."""
    stats = pytest.importorskip("scipy.stats")
    for freedom in (3, 3.7, 4, 5, 7.2, 11, 38, 400):
        for confidence in (0.5, 0.9, 0.95, 0.999, 0.99999):
            exact = stats.t.ppf(0.5 + confidence / 2, freedom)
            assert student_quantile(confidence, freedom) == pytest.approx(exact, rel=1e-5)


def test_welch() -> None:
    """The interval agrees with scipy's; too few samples give none; equal constants differ by exactly nothing."""
    stats = pytest.importorskip("scipy.stats")
    chance = random.Random(1)
    before, after = [chance.gauss(10, 1) for _ in range(9)], [chance.gauss(12, 3) for _ in range(17)]
    found = welch(before, after, 0.95)
    interval = stats.ttest_ind(after, before, equal_var=False).confidence_interval(0.95)
    assert found is not None
    assert (found.low_ns, found.high_ns) == pytest.approx((interval.low, interval.high), rel=1e-4)
    assert welch([1.0, 2.0, 3.0], after, 0.95) is None
    same = welch([5.0] * 4, [5.0] * 4, 0.95)
    assert same is not None and not same.excludes_zero


def test_batches() -> None:
    """Batches have equal numbers of successive values, and the oldest values are left out."""
    assert batch_means([float(value) for value in range(7)]) == [0, 1, 2, 3, 4, 5, 6]
    means = batch_means([float(value) for value in range(47)])
    assert len(means) == 15 and means[0] == 3 and means[-1] == 45


def _run(chance: random.Random, mean_ns: float, steps: int = 400, offset_ns: float = 0.0) -> RunSamples:
    """A simulated run whose steps depend on the steps before them."""
    samples, drift, durations = OperationSamples(), 0.0, list[float]()
    for step in range(steps):
        drift = 0.8 * drift + chance.gauss(0, mean_ns / 50)
        durations.append(mean_ns + offset_ns + drift)
        for _ in range(4):
            samples.add(step, round(durations[-1] + chance.gauss(0, mean_ns / 200)))
    return RunSamples({KEY: samples}, durations, 4)


def test_noise_is_no_difference() -> None:
    """Two runs of one program with dependent steps rarely differ, although 1,600 calls in each tempt one to say so."""
    chance = random.Random(7)
    wrong = 0
    for _ in range(100):
        sides = [ComparedSide(("run",), (_run(chance, 1e6),)) for _ in range(2)]
        steps = comparison_of(*sides, confidence=0.95).steps
        assert steps is not None and steps.difference is not None
        wrong += steps.difference.excludes_zero
    assert wrong <= 12  # 5 expected


def test_a_change_is_found() -> None:
    """A change by 3 % is found in steps and operation, and the sentence has its size and direction."""
    chance = random.Random(3)
    comparison = comparison_of(
        ComparedSide(("one",), (_run(chance, 1e6),)), ComparedSide(("two",), (_run(chance, 1.03e6),)), 0.95
    )
    assert comparison.steps is not None and comparison.steps.difference is not None
    assert comparison.steps.difference.low_ns > 0
    assert comparison.operations[0].differs
    assert comparison.sentence.startswith("a step takes ") and "% longer: 1.03 ms instead of" in comparison.sentence
    assert comparison.sentence.endswith("; all_reduce of replicas (1MiB) differs")


def test_several_runs() -> None:
    """With four runs on each side, intervals cover what differs from run to run of one program."""
    chance = random.Random(5)
    single, several = 0, 0
    for _ in range(40):
        sides = [
            ComparedSide(tuple("abcde"), tuple(_run(chance, 1e6, 60, chance.gauss(0, 3e4)) for _ in range(5)))
            for _ in range(2)
        ]
        comparison = comparison_of(*sides, confidence=0.95)
        assert comparison.by_runs and comparison.steps is not None and comparison.steps.difference is not None
        several += comparison.steps.difference.excludes_zero
        alone = [ComparedSide(("a",), side.runs[:1]) for side in sides]
        steps = comparison_of(*alone, confidence=0.95).steps
        assert steps is not None and steps.difference is not None
        single += steps.difference.excludes_zero
    assert several <= 6 < single


def test_an_operation_of_one_side() -> None:
    """An operation that only one run calls has no interval, and the time that it costs a step."""
    chance = random.Random(2)
    before = _run(chance, 1e6)
    after = RunSamples({**before.operations, OperationKey("barrier", "g", "none"): OperationSamples()}, before.steps, 4)
    for step in range(400):
        after.operations[OperationKey("barrier", "g", "none")].add(step, 2_000_000)
    comparison = comparison_of(ComparedSide(("a",), (before,)), ComparedSide(("b",), (after,)), 0.95)
    first = comparison.operations[0]
    assert (first.operation, first.calls_before, first.difference, first.step_ns) == ("barrier", 0, None, 500_000)
    assert first.mean_before_ns is None and "- → 2.00 ms" in comparison._repr_html_()


@pytest.mark.process
def test_two_real_runs(jobs: RecordedJobs) -> None:
    """The 30 ms that each step computes longer are found; comparing a run with itself finds nothing."""
    comparison = compare(jobs.before, jobs.after)
    steps = comparison.steps
    assert steps is not None and steps.difference is not None
    assert steps.steps_before + steps.unsteady_before == steps.steps_after + steps.unsteady_after == STEPS - 2
    longer_ns = (COMPUTE_MS[1] - COMPUTE_MS[0]) * 1e6
    assert (
        steps.difference.low_ns > 0 and 0.5 * longer_ns < steps.median_after_ns - steps.median_before_ns < 2 * longer_ns
    )
    assert comparison.sentence.startswith("a step takes ") and "longer" in comparison.sentence
    assert {change.operation for change in comparison.operations} >= {"all_reduce"}
    assert {change.group for change in comparison.operations} >= {"replicas"}
    same = compare(jobs.before, [jobs.before])
    assert same.sentence.startswith("no difference within noise: a step takes ")
    assert not any(change.differs for change in same.operations)
    assert compare(jobs.before, jobs.after) == comparison, "the same runs give the same intervals"


def test_wrong_arguments() -> None:
    """A confidence out of range, no run, and runs without timed calls are named."""
    run = open_run(DUMPS)
    with pytest.raises(ValueError, match=r"confidence=95: expected a number from 0\.5 to below 1"):
        compare(run, run, confidence=95)
    with pytest.raises(ValueError, match="no run to compare"):
        compare([], run)
    with pytest.raises(RunError, match="no timed call to compare after the steps that are skipped"):
        compare(open_run(TRACE), open_run(TRACE), skip_steps=1_000)
    nothing = ComparedSide(("an empty run",), (RunSamples({}, [], 0),))
    with pytest.raises(RunError, match="an empty run: no timed call to compare"):
        comparison_of(nothing, nothing, 0.95)
