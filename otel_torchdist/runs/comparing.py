"""`compare`: the entry to comparisons of runs."""

from __future__ import annotations

from collections.abc import Sequence

from otel_torchdist.runs.comparison.comparison import ComparedSide, Comparison, comparison_of
from otel_torchdist.runs.comparison.samples import RunSamples, samples_of
from otel_torchdist.runs.recorded_run import RecordedRun


def compare(
    before: RecordedRun | Sequence[RecordedRun],
    after: RecordedRun | Sequence[RecordedRun],
    confidence: float = 0.95,
    skip_steps: int = 2,
) -> Comparison:
    """Compare runs before and after a change.

    With one run on each side, the intervals cover the variation between steps. They do not cover differences between
    two runs of the same program, such as another placement on nodes. With four or more runs on each side, they do.

    Args:
        before: The run before the change, or several runs of the same program.
        after: The run after it, or several.
        confidence: Confidence of the intervals.
        skip_steps: Number of the first recorded steps of each run to leave out: they warm up.

    Raises:
        ValueError: `confidence` is not between 0.5 and 1, or there is no run before or after the change.
        RunError: A run cannot be read, or has no timed calls.
    """
    if not 0.5 <= confidence < 1:
        raise ValueError(f"confidence={confidence}: expected a number from 0.5 to below 1, such as 0.95")
    return comparison_of(_side(before, skip_steps), _side(after, skip_steps), confidence)


def _side(runs: RecordedRun | Sequence[RecordedRun], skip_steps: int) -> ComparedSide:
    each = (runs,) if isinstance(runs, RecordedRun) else tuple(runs)
    if not each:
        raise ValueError("no run to compare: give at least one before and one after the change")
    samples: list[RunSamples] = []
    for run in each:
        with run.histories() as histories:
            samples.append(samples_of(histories, skip_steps))
    return ComparedSide(tuple(run.headline for run in each), tuple(samples))
