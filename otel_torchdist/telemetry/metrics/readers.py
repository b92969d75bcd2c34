"""Read the series of a metric from the snapshot of a node: the values of its labels, each time with a number."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from otel_torchdist.telemetry.metrics.durations import DurationHistogram
from otel_torchdist.telemetry.metrics.snapshots import GroupSnapshot, NodeSnapshot, OperationSnapshot, RankSnapshot

Labels: TypeAlias = tuple[str, ...]
Numbers: TypeAlias = Iterable[tuple[Labels, float]]
Histograms: TypeAlias = Iterable[tuple[Labels, DurationHistogram]]


def of_rank(value: Callable[[RankSnapshot], float | None]) -> Callable[[NodeSnapshot], Numbers]:
    """Make a reader of one number for each rank; ranks for which it is None have no series."""

    def read(node: NodeSnapshot) -> Numbers:
        for rank in node.ranks:
            number = value(rank)
            if number is not None:
                yield (rank.run, str(rank.rank)), number

    return read


def of_operation(value: Callable[[OperationSnapshot], float]) -> Callable[[NodeSnapshot], Numbers]:
    """Make a reader of one number for each operation of each rank."""

    def read(node: NodeSnapshot) -> Numbers:
        for rank in node.ranks:
            for one in rank.operations:
                yield (rank.run, str(rank.rank), one.group, one.operation), value(one)

    return read


def of_group(value: Callable[[GroupSnapshot], int | None]) -> Callable[[NodeSnapshot], Numbers]:
    """Make a reader of one number for each group of each rank; groups for which it is None have no series."""

    def read(node: NodeSnapshot) -> Numbers:
        for rank in node.ranks:
            for group in rank.groups:
                number = value(group)
                if number is not None:
                    yield (rank.run, str(rank.rank), group.group), number

    return read


def stalled(node: NodeSnapshot) -> Numbers:
    """For each group of each run whether its operation holds up the run."""
    for label, run in node.runs.items():
        cause = run.stall.group if run.stall else None
        for group in sorted({*run.groups, *run.stalled_groups}):
            yield (label, group), int(group == cause)


def stall_info(node: NodeSnapshot) -> Numbers:
    """The verdict on each run that is stalled."""
    for label, run in node.runs.items():
        if run.stall:
            stall = run.stall
            yield (
                (label, stall.group, stall.operation, stall.verdict, stall.ranks, stall.coverage, stall.trace_id),
                1,
            )


def finding_info(node: NodeSnapshot) -> Numbers:
    """What was found in each run without a stall; each finding once."""
    for label, run in node.runs.items():
        for found in dict.fromkeys(run.findings):
            yield (label, found.group, found.operation, found.verdict, found.ranks, found.trace_id), 1


def arrivals(node: NodeSnapshot) -> Numbers:
    """Calls of each group whose arrivals have been compared."""
    for label, run in node.runs.items():
        for group, counts in run.arrivals.items():
            yield (label, group), counts.calls


def last_arrivals(node: NodeSnapshot) -> Numbers:
    """In how many compared calls of each group each rank came last."""
    for label, run in node.runs.items():
        for group, counts in run.arrivals.items():
            for rank, number in counts.last.items():
                yield (label, str(rank), group), number


def lateness(node: NodeSnapshot) -> Numbers:
    """For how many seconds the others waited for each rank alone, by group."""
    for label, run in node.runs.items():
        for group, counts in run.arrivals.items():
            for rank, seconds in counts.late_s.items():
                yield (label, str(rank), group), seconds


def waited(node: NodeSnapshot) -> Numbers:
    """For how many seconds a rank waited on average for the last one in the compared calls of each group."""
    for label, run in node.runs.items():
        for group, counts in run.arrivals.items():
            yield (label, group), counts.waited_s


def group_members(node: NodeSnapshot) -> Numbers:
    """How many members each group has."""
    for label, run in node.runs.items():
        for group, info in run.groups.items():
            yield (label, group), info.size


def group_info(node: NodeSnapshot) -> Numbers:
    """What each group is for, and its size."""
    for label, run in node.runs.items():
        for group, info in run.groups.items():
            yield (label, group, info.description, str(info.size)), 1


def operation_durations(node: NodeSnapshot) -> Histograms:
    """How long each operation of each group took, by size."""
    for label, run in node.runs.items():
        for labels, one in run.timed.items():
            yield (label, *labels), one.durations


def timed_bytes(node: NodeSnapshot) -> Numbers:
    """What was contributed to these operations."""
    for label, run in node.runs.items():
        for labels, one in run.timed.items():
            yield (label, *labels), one.message_bytes


def step_durations(node: NodeSnapshot) -> Histograms:
    """How long the steps of each run took; a run that has ended none has no series."""
    for label, run in node.runs.items():
        if run.steps.count:
            yield (label,), run.steps
