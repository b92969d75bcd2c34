"""Reads the series of a metric from a node's snapshot: label values, each with a number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from otel_torchdist.tape.figures import StepFigures
from otel_torchdist.tape.layout import Kernel
from otel_torchdist.tape.records.numerics import Numerics
from otel_torchdist.telemetry.metrics.checkpoints import WHOLE, CheckpointCounts
from otel_torchdist.telemetry.metrics.model import Histograms, Numbers
from otel_torchdist.telemetry.metrics.snapshots import GroupSnapshot, NodeSnapshot, OperationSnapshot, RankSnapshot

Reader: TypeAlias = Callable[[NodeSnapshot], Numbers]


def of_rank(value: Callable[[RankSnapshot], float | None]) -> Reader:
    """Make a reader of one number per rank; ranks with None have no series."""

    def read(node: NodeSnapshot) -> Numbers:
        for rank in node.ranks:
            number = value(rank)
            if number is not None:
                yield (rank.run, str(rank.rank)), number

    return read


def of_figures(value: Callable[[StepFigures], float], count: Callable[[StepFigures], float]) -> Reader:
    """Make a reader of one number per rank; a rank that has counted nothing of the kind has no series."""
    return of_rank(lambda rank: value(rank.figures) if count(rank.figures) else None)


def of_operation(value: Callable[[OperationSnapshot], float]) -> Callable[[NodeSnapshot], Numbers]:
    """Make a reader of one number per operation of each rank."""

    def read(node: NodeSnapshot) -> Numbers:
        for rank in node.ranks:
            for one in rank.operations:
                yield (rank.run, str(rank.rank), one.group, one.operation), value(one)

    return read


def of_values(value: Callable[[Numerics], float | None]) -> Callable[[NodeSnapshot], Numbers]:
    """Make a reader of one number per operation of each rank whose inputs were sampled; None and NaN have no series."""

    def read(node: NodeSnapshot) -> Numbers:
        for rank in node.ranks:
            for one in rank.operations:
                number = value(one.values) if one.values is not None else None
                if number is not None and not math.isnan(number):
                    yield (rank.run, str(rank.rank), one.group, one.operation), number

    return read


def of_checkpoints(
    value: Callable[[CheckpointCounts], float], only_whole: bool = False
) -> Callable[[NodeSnapshot], Numbers]:
    """Make a reader of one number per operation and stage of each rank, or per operation; zeros have no series."""

    def read(node: NodeSnapshot) -> Numbers:
        for rank in node.ranks:
            for one in rank.checkpoints:
                number = value(one)
                if number and not only_whole:
                    yield (rank.run, str(rank.rank), one.operation, one.stage), number
                elif number and one.stage == WHOLE:
                    yield (rank.run, str(rank.rank), one.operation), number

    return read


def saved_age(node: NodeSnapshot) -> Numbers:
    """Seconds since the last save that has ended well on a rank of the run; no series before the first."""
    newest: dict[str, float] = {}
    for rank in node.ranks:
        if rank.saved_age_s is not None and rank.up:
            newest[rank.run] = min(newest.get(rank.run, rank.saved_age_s), rank.saved_age_s)
    for run, age_s in newest.items():
        yield (run,), age_s


def save_interval(node: NodeSnapshot) -> Numbers:
    """Longest of the newest intervals between saves, of the rank of each run that saves most often."""
    shortest: dict[str, float] = {}
    for rank in node.ranks:
        if rank.save_interval_s and rank.up:
            shortest[rank.run] = min(shortest.get(rank.run, rank.save_interval_s), rank.save_interval_s)
    for run, interval_s in shortest.items():
        yield (run,), interval_s


def unseen_operations(node: NodeSnapshot) -> Numbers:
    """Operations of each rank whose inputs were not looked at, by the reason."""
    for rank in node.ranks:
        for reason, count in rank.totals.unseen.items():
            yield (rank.run, str(rank.rank), reason), count


def of_group(value: Callable[[GroupSnapshot], int | None]) -> Callable[[NodeSnapshot], Numbers]:
    """Make a reader of one number per group of each rank; groups with None have no series."""

    def read(node: NodeSnapshot) -> Numbers:
        for rank in node.ranks:
            for group in rank.groups:
                number = value(group)
                if number is not None:
                    yield (rank.run, str(rank.rank), group.group), number

    return read


def capture_info(node: NodeSnapshot) -> Numbers:
    """What records each rank; ranks whose tape does not say it have no series."""
    for rank in node.ranks:
        if rank.kernel is not Kernel.UNKNOWN:
            yield (rank.run, str(rank.rank), rank.kernel.name.lower(), rank.torch), 1


def stalled(node: NodeSnapshot) -> Numbers:
    """For each group of each run, whether its operation holds up the run."""
    for label, run in node.runs.items():
        cause = run.stall.group if run.stall else None
        for group in sorted({*run.groups, *run.stalled_groups}):
            yield (label, group), int(group == cause)


def stall_info(node: NodeSnapshot) -> Numbers:
    """The verdict on each stalled run."""
    for label, run in node.runs.items():
        if run.stall:
            stall = run.stall
            yield (
                (label, stall.group, stall.operation, stall.verdict, stall.ranks, stall.coverage, stall.trace_id),
                1,
            )


def finding_info(node: NodeSnapshot) -> Numbers:
    """Findings in each run that are not stalls, each once."""
    for label, run in node.runs.items():
        for found in dict.fromkeys(run.findings):
            yield (label, found.group, found.operation, found.verdict, found.ranks, found.trace_id), 1


def arrivals(node: NodeSnapshot) -> Numbers:
    """Calls of each group whose arrivals have been compared."""
    for label, run in node.runs.items():
        for group, counts in run.arrivals.items():
            yield (label, group), counts.calls


def last_arrivals(node: NodeSnapshot) -> Numbers:
    """Number of compared calls of each group in which each rank came last."""
    for label, run in node.runs.items():
        for group, counts in run.arrivals.items():
            for rank, number in counts.last.items():
                yield (label, str(rank), group), number


def lateness(node: NodeSnapshot) -> Numbers:
    """Seconds for which the others waited for each rank alone, by group."""
    for label, run in node.runs.items():
        for group, counts in run.arrivals.items():
            for rank, seconds in counts.late_s.items():
                yield (label, str(rank), group), seconds


def waited(node: NodeSnapshot) -> Numbers:
    """Seconds for which a rank waited on average for the last one, in the compared calls of each group."""
    for label, run in node.runs.items():
        for group, counts in run.arrivals.items():
            yield (label, group), counts.waited_s


def path_kinds(node: NodeSnapshot) -> Numbers:
    """Seconds of each run's critical path, by what happens on it."""
    for label, run in node.runs.items():
        if run.path is not None:
            for kind, seconds in run.path.kinds.items():
                yield (label, kind), seconds


def path_ranks(node: NodeSnapshot) -> Numbers:
    """Seconds for which ranks compute on each run's critical path."""
    for label, run in node.runs.items():
        if run.path is not None:
            for rank, seconds in run.path.ranks.items():
                yield (label, str(rank)), seconds


def path_gains(node: NodeSnapshot) -> Numbers:
    """Seconds by which steps of each run would be shorter without one cause."""
    for label, run in node.runs.items():
        if run.path is not None:
            for labels, seconds in run.path.gains.items():
                yield (label, *labels), seconds


def group_members(node: NodeSnapshot) -> Numbers:
    """Number of members of each group."""
    for label, run in node.runs.items():
        for group, info in run.groups.items():
            yield (label, group), info.size


def group_info(node: NodeSnapshot) -> Numbers:
    """Purpose and size of each group."""
    for label, run in node.runs.items():
        for group, info in run.groups.items():
            yield (label, group, info.description, str(info.size)), 1


def operation_durations(node: NodeSnapshot) -> Histograms:
    """Durations of each operation of each group, by size."""
    for label, run in node.runs.items():
        for labels, one in run.timed.items():
            yield (label, *labels), one.durations


def timed_bytes(node: NodeSnapshot) -> Numbers:
    """Bytes contributed to these operations."""
    for label, run in node.runs.items():
        for labels, one in run.timed.items():
            yield (label, *labels), one.message_bytes


def call_durations(metric: str) -> Callable[[NodeSnapshot], Histograms]:
    """Make a reader of one side's remote procedure calls, by function and error."""

    def read(node: NodeSnapshot) -> Histograms:
        for label, run in node.runs.items():
            for (side, labels), durations in run.calls.items():
                if side == metric:
                    yield (label, *labels), durations

    return read


def step_durations(node: NodeSnapshot) -> Histograms:
    """Durations of the steps of each run; a run without an ended step has no series."""
    for label, run in node.runs.items():
        if run.steps.count:
            yield (label,), run.steps
