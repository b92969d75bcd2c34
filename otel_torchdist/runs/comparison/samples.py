"""The durations of a run's operations and steps, by step."""

from __future__ import annotations

import itertools
from array import array
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import NamedTuple

from otel_torchdist.analysis.critical_path.analysis import MAX_STEADY_RATIO
from otel_torchdist.analysis.statistics.grouping import NO_SIZE, UNKNOWN_SIZE
from otel_torchdist.analysis.statistics.traffic import size_of
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.text import size_class
from otel_torchdist.sources.history.call_kinds import CallKind
from otel_torchdist.sources.history.call_table import RankCalls


class OperationKey(NamedTuple):
    """Calls that are compared between runs. Keys of groups differ between runs, their names do not.

    Attributes:
        operation: `all_reduce`, `send`, …
        group: Name of the process group, without its ranks: all groups of one mesh dimension count together.
        size_class: Class of the message size.
    """

    operation: str
    group: str
    size_class: str


@dataclass(slots=True)
class OperationSamples:
    """The timed calls of one key.

    Attributes:
        by_step: Nanoseconds of each call of all ranks, by step; by sequence if steps are not recorded.
    """

    by_step: dict[int, array[int]] = field(default_factory=dict[int, "array[int]"])

    def add(self, step: int, duration_ns: int) -> None:
        """Add a call."""
        durations = self.by_step.get(step)
        if durations is None:
            durations = self.by_step[step] = array("q")
        durations.append(duration_ns)

    @property
    def durations(self) -> list[int]:
        """The durations of all calls."""
        return [duration_ns for durations in self.by_step.values() for duration_ns in durations]

    @property
    def means(self) -> list[float]:
        """The mean duration in each step, in order of steps."""
        return [fmean(durations) for _, durations in sorted(self.by_step.items())]


@dataclass(frozen=True, slots=True)
class RunSamples:
    """The durations of one run.

    Attributes:
        operations: Timed calls by key.
        steps: Mean duration of each steady step over the ranks, in order; empty if steps are not recorded.
        ranks: Number of ranks with calls.
        unsteady: Number of steps left out because they took more than `MAX_STEADY_RATIO` times the median.
    """

    operations: dict[OperationKey, OperationSamples]
    steps: list[float]
    ranks: int
    unsteady: int = 0


def samples_of(histories: Iterable[RankHistory], skip_steps: int) -> RunSamples:
    """Collect the durations of a run.

    Args:
        histories: One history for each rank.
        skip_steps: Number of the first recorded steps to leave out.
    """
    operations: dict[OperationKey, OperationSamples] = defaultdict(OperationSamples)
    of_ranks: dict[int, list[int]] = defaultdict(list)
    ranks = 0
    for history in histories:
        calls = RankCalls(history)
        ranks += bool(len(calls))
        first = min((mark.step for mark in calls.steps), default=0) + skip_steps
        _add_calls(calls, operations, first)
        for before, mark in itertools.pairwise(calls.steps):
            if mark.step == before.step + 1 and mark.step >= first:
                of_ranks[mark.step].append(mark.ended_ns - before.ended_ns)
    steps = {step: fmean(durations) for step, durations in sorted(of_ranks.items())}
    if not steps:
        return RunSamples({key: samples for key, samples in operations.items() if samples.by_step}, [], ranks)
    longest_ns = MAX_STEADY_RATIO * median(steps.values())
    steady = {step: step_ns for step, step_ns in steps.items() if step_ns <= longest_ns}
    for samples in operations.values():
        samples.by_step = {step: durations for step, durations in samples.by_step.items() if step in steady}
    kept = {key: samples for key, samples in operations.items() if samples.by_step}
    return RunSamples(kept, list(steady.values()), ranks, len(steps) - len(steady))


def _add_calls(calls: RankCalls, operations: dict[OperationKey, OperationSamples], first: int) -> None:
    has_steps = bool(calls.steps)
    samples = [operations[_key_of(kind)] if kind.record_kind is RecordKind.OPERATION else None for kind in calls.kinds]
    for index, (kind, started_ns, ended_ns) in enumerate(zip(calls.kind, calls.started, calls.ended, strict=True)):
        of_kind = samples[kind]
        if of_kind is None or not calls.is_timed(index):
            continue
        step = calls.step[index] if has_steps else calls.sequence[index]
        if not has_steps or step >= first:
            of_kind.add(step, ended_ns - started_ns)


def _key_of(kind: CallKind) -> OperationKey:
    size = size_of(kind)
    size_name = UNKNOWN_SIZE if size is None else size_class(size) if size else NO_SIZE
    return OperationKey(kind.operation, kind.group.label if kind.group is not None else "", size_name)
