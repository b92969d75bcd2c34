"""Compares runs before and after a change: per step, and per operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from statistics import fmean, median
from typing import Final

import msgspec

from otel_torchdist.errors import RunError
from otel_torchdist.model.text import duration
from otel_torchdist.runs.comparison.intervals import MIN_SAMPLES, MeanDifference, batch_means, welch
from otel_torchdist.runs.comparison.samples import OperationKey, OperationSamples, RunSamples
from otel_torchdist.runs.tables.table import html_table

_SHOWN_OPERATIONS: Final = 20
_NO_SAMPLES: Final = OperationSamples()


class StepChange(msgspec.Struct, frozen=True):
    """The durations of steps before and after, each the mean over its ranks.

    Attributes:
        steps_before: Number of compared steps.
        steps_after: Number of compared steps.
        unsteady_before: Number of steps that were left out because they took more than twice the median.
        unsteady_after: The same after the change.
        mean_before_ns: Mean duration.
        mean_after_ns: Mean duration.
        median_before_ns: Median duration.
        median_after_ns: Median duration.
        difference: The difference of the means; null if there are too few steps for an interval.
    """

    steps_before: int
    steps_after: int
    unsteady_before: int
    unsteady_after: int
    mean_before_ns: float
    mean_after_ns: float
    median_before_ns: float
    median_after_ns: float
    difference: MeanDifference | None


class OperationChange(msgspec.Struct, frozen=True):
    """The timed calls of one operation before and after.

    Attributes:
        operation: `all_reduce`, `send`, …
        group: Name of the process group.
        size_class: Class of the message size.
        calls_before: Number of timed calls.
        calls_after: Number of timed calls.
        mean_before_ns: Mean of the steps' mean durations; null without calls.
        mean_after_ns: The same after the change.
        median_before_ns: Median duration of a call; null without calls.
        median_after_ns: The same after the change.
        difference: The difference of the means; null if there are too few steps for an interval.
        differs: Whether the interval that allows for the number of compared operations (Bonferroni) excludes zero.
        step_ns: Change of the time that a rank spends in these calls in a step; null if steps are not recorded.
    """

    operation: str
    group: str
    size_class: str
    calls_before: int
    calls_after: int
    mean_before_ns: float | None
    mean_after_ns: float | None
    median_before_ns: float | None
    median_after_ns: float | None
    difference: MeanDifference | None
    differs: bool
    step_ns: float | None


class Comparison(msgspec.Struct, frozen=True):
    """The comparison of runs before and after a change.

    Attributes:
        before: Headlines of the runs before the change.
        after: Headlines of the runs after the change.
        confidence: Confidence of the intervals, such as 0.95.
        by_runs: Whether intervals are between runs, which shows differences that vary from run to run; otherwise
            between the steps of single runs, which does not.
        steps: The change of steps; null if steps are not recorded.
        operations: The changes of operations, the greatest change of time first.
        sentence: The result in a sentence.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    confidence: float
    by_runs: bool
    steps: StepChange | None
    operations: tuple[OperationChange, ...]
    sentence: str

    def _repr_html_(self) -> str:
        """Return the sentence and the operations with the greatest changes, for notebooks."""
        rows = [
            (
                change.operation,
                change.group,
                change.size_class,
                f"{change.calls_before:,} → {change.calls_after:,}",
                f"{_text(change.mean_before_ns)} → {_text(change.mean_after_ns)}",
                _interval(change.difference),
                "yes" if change.differs else "",
                _signed(change.step_ns) if change.step_ns is not None else "",
            )
            for change in self.operations[:_SHOWN_OPERATIONS]
        ]
        names = ("operation", "group", "size", "calls", "mean", "difference", "differs", "per step and rank")
        runs = f"{'; '.join(self.before)} → {'; '.join(self.after)}"
        return f"<p><b>{escape(self.sentence)}</b></p><p>{escape(runs)}</p>{html_table(names, rows)}"


class ComparedSide(msgspec.Struct, frozen=True):
    """The runs on one side of a comparison.

    Attributes:
        headlines: Their headlines.
        runs: Their samples.
    """

    headlines: tuple[str, ...]
    runs: tuple[RunSamples, ...]


def comparison_of(before: ComparedSide, after: ComparedSide, confidence: float) -> Comparison:
    """Compare the samples of runs.

    Args:
        before: The runs before the change.
        after: The runs after the change.
        confidence: Confidence of the intervals.

    Raises:
        RunError: A side has no timed call.
    """
    for side in (before, after):
        if not any(run.operations for run in side.runs):
            raise RunError(f"{'; '.join(side.headlines)}: no timed call to compare after the steps that are skipped")
    sides = before.runs, after.runs
    by_runs = min(map(len, sides)) >= MIN_SAMPLES
    keys = sorted({key for side in sides for run in side for key in run.operations})
    adjusted = 1 - (1 - confidence) / len(keys)
    changes = [_operation_change(key, sides, by_runs, confidence, adjusted) for key in keys]
    steps = _step_change(sides, by_runs, confidence)
    ordered = tuple(sorted(changes, key=_magnitude, reverse=True))
    return Comparison(
        before=before.headlines,
        after=after.headlines,
        confidence=confidence,
        by_runs=by_runs,
        steps=steps,
        operations=ordered,
        sentence=_sentence(steps, ordered, confidence),
    )


_Sides = tuple[Sequence[RunSamples], Sequence[RunSamples]]


def _difference(
    sides: _Sides, values: Callable[[RunSamples], Sequence[float]], by_runs: bool, confidence: float
) -> MeanDifference | None:
    before, after = (_independent([values(run) for run in side], by_runs) for side in sides)
    return welch(before, after, confidence)


def _independent(values_by_run: Sequence[Sequence[float]], by_runs: bool) -> list[float]:
    """Return samples that may be taken as independent: means of runs, or of batches of each run's steps."""
    if by_runs:
        return [fmean(values) for values in values_by_run if values]
    return [mean for values in values_by_run for mean in batch_means(values)]


def _step_change(sides: _Sides, by_runs: bool, confidence: float) -> StepChange | None:
    before, after = ([step_ns for run in side for step_ns in run.steps] for side in sides)
    if not before or not after:
        return None
    return StepChange(
        steps_before=len(before),
        steps_after=len(after),
        unsteady_before=sum(run.unsteady for run in sides[0]),
        unsteady_after=sum(run.unsteady for run in sides[1]),
        mean_before_ns=fmean(before),
        mean_after_ns=fmean(after),
        median_before_ns=median(before),
        median_after_ns=median(after),
        difference=_difference(sides, lambda run: run.steps, by_runs, confidence),
    )


def _operation_change(
    key: OperationKey, sides: _Sides, by_runs: bool, confidence: float, adjusted: float
) -> OperationChange:
    def means(run: RunSamples) -> list[float]:
        return run.operations.get(key, _NO_SAMPLES).means

    durations = [[ns for run in side for ns in run.operations.get(key, _NO_SAMPLES).durations] for side in sides]
    step_means = [[mean for run in side for mean in means(run)] for side in sides]
    strict = _difference(sides, means, by_runs, adjusted)
    spent = [_per_step_ns(side, key) for side in sides]
    return OperationChange(
        *key,
        calls_before=len(durations[0]),
        calls_after=len(durations[1]),
        mean_before_ns=fmean(step_means[0]) if step_means[0] else None,
        mean_after_ns=fmean(step_means[1]) if step_means[1] else None,
        median_before_ns=median(durations[0]) if durations[0] else None,
        median_after_ns=median(durations[1]) if durations[1] else None,
        difference=_difference(sides, means, by_runs, confidence),
        differs=strict is not None and strict.excludes_zero,
        step_ns=spent[1] - spent[0] if spent[0] is not None and spent[1] is not None else None,
    )


def _per_step_ns(side: Sequence[RunSamples], key: OperationKey) -> float | None:
    """Return the time that a rank spends in an operation in a step; None if steps are not recorded."""
    rank_steps = sum(len(run.steps) * run.ranks for run in side)
    total_ns = sum(sum(run.operations[key].durations) for run in side if key in run.operations)
    return total_ns / rank_steps if rank_steps else None


def _magnitude(change: OperationChange) -> float:
    if change.step_ns is not None:
        return abs(change.step_ns)
    return abs(change.difference.ns) if change.difference is not None else 0.0


def _sentence(steps: StepChange | None, operations: Sequence[OperationChange], confidence: float) -> str:
    differing = [change for change in operations if change.differs]
    names = ", ".join(f"{change.operation} of {change.group} ({change.size_class})" for change in differing[:3])
    if steps is None:
        if not differing:
            return "no difference within noise in any operation; steps are not recorded"
        return f"{len(differing)} of {len(operations)} operations differ, first {names}; steps are not recorded"
    if steps.difference is None:
        return f"too few steps for a comparison: {steps.steps_before} before, {steps.steps_after} after"
    means = f"{_text(steps.mean_after_ns)} instead of {_text(steps.mean_before_ns)}"
    interval = f"{confidence * 100:g}% confidence: {_interval(steps.difference)}"
    in_operations = f"; {names} differ{'s' if len(differing) == 1 else ''}" if differing else ""
    if not steps.difference.excludes_zero:
        return f"no difference within noise: a step takes {means} ({interval}){in_operations}"
    change = steps.difference.ns / steps.mean_before_ns
    return f"a step takes {abs(change):.1%} {'longer' if change > 0 else 'less'}: {means} ({interval}){in_operations}"


def _text(ns: float | None) -> str:
    return "-" if ns is None else duration(round(ns))


def _signed(ns: float) -> str:
    return f"{'-' if ns < 0 else '+'}{duration(abs(round(ns)))}"


def _interval(difference: MeanDifference | None) -> str:
    if difference is None:
        return "unknown"
    return f"{_signed(difference.low_ns)} to {_signed(difference.high_ns)}"
