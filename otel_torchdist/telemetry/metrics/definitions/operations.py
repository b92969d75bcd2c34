"""Operations and remote calls of ranks: how many, how large, how long, and how far each group has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.metrics.metric import (
    BY_GROUP,
    BY_OPERATION,
    BY_RANK,
    HistogramMetric,
    Histograms,
    MetricKind,
    NumberMetric,
    Numbers,
    Reader,
    Unit,
    counter,
    gauge,
    of_operation,
    of_rank,
)
from otel_torchdist.telemetry.metrics.snapshots import GroupSnapshot, NodeSnapshot

_BY_SIZE: Final = ("run", "group", "operation", "message_size")


def of_group(value: Callable[[GroupSnapshot], int | None]) -> Reader:
    """Make a reader of one number per group of each rank; groups with None have no series."""

    def read(node: NodeSnapshot) -> Numbers:
        for rank in node.ranks:
            for group in rank.groups:
                number = value(group)
                if number is not None:
                    yield (rank.run, str(rank.rank), group.group), number

    return read


def timed_bytes(node: NodeSnapshot) -> Numbers:
    """Yield the bytes contributed to these operations."""
    for label, run in node.runs.items():
        for labels, one in run.timed.items():
            yield (label, *labels), one.message_bytes


OLDEST_AGE: Final = gauge(
    "torchdist.operation.oldest_age",
    Unit.SECONDS,
    "Age of the oldest operation in flight, 0 if there is none. It counts from the wait for an operation whose end "
    "only a wait can show, and from the start on the device for one that runs there.",
    BY_OPERATION,
    of_operation(lambda one: one.oldest_age_s),
)
LAST_STARTED_SEQUENCE: Final = gauge(
    "torchdist.last_started_sequence",
    Unit.NONE,
    "Sequence number of the newest collective of the group that the rank has entered, or begun on its device.",
    BY_GROUP,
    of_group(lambda group: group.started_sequence),
)
OPERATION_METRICS: Final = (
    NumberMetric(
        "torchdist.operations.in_flight",
        MetricKind.UP_DOWN,
        Unit.OPERATIONS,
        "Operations that the rank has entered and that have not ended.",
        BY_OPERATION,
        of_operation(lambda one: one.in_flight),
    ),
    OLDEST_AGE,
    counter(
        "torchdist.operations",
        Unit.OPERATIONS,
        "Operations that the rank has entered.",
        BY_OPERATION,
        of_operation(lambda one: one.entered),
    ),
    counter(
        "torchdist.message",
        Unit.BYTES,
        "Bytes that the rank has contributed to its operations.",
        BY_OPERATION,
        of_operation(lambda one: one.message_bytes),
    ),
    counter(
        "torchdist.timed_operations",
        Unit.OPERATIONS,
        "The rank's operations whose duration is known; see the histogram of the node for its distribution.",
        BY_OPERATION,
        of_operation(lambda one: one.timed),
    ),
    counter(
        "torchdist.timed_operation",
        Unit.SECONDS,
        "Sum of the rank's known operation durations.",
        BY_OPERATION,
        of_operation(lambda one: one.timed_s),
    ),
    counter(
        "torchdist.timed_message",
        Unit.BYTES,
        "Bytes that the node's ranks have contributed to operations whose duration is known.",
        _BY_SIZE,
        timed_bytes,
    ),
    counter(
        "torchdist.blocked",
        Unit.SECONDS,
        "Time in which a thread of the rank was inside an operation's call or inside a wait for one. "
        "Waits in C++, such as DDP's, are not seen.",
        BY_RANK,
        of_rank(lambda rank: rank.blocked_s),
    ),
    counter(
        "torchdist.communication",
        Unit.SECONDS,
        "Time with at least one operation of the rank in flight, whether it overlapped with computation or not.",
        BY_RANK,
        of_rank(lambda rank: rank.communicating_s),
    ),
    LAST_STARTED_SEQUENCE,
    gauge(
        "torchdist.last_completed_sequence",
        Unit.NONE,
        "Sequence number of the newest collective of the group that is known to have ended on the rank.",
        BY_GROUP,
        of_group(lambda group: group.completed_sequence),
    ),
    counter(
        "torchdist.operations.untracked",
        Unit.OPERATIONS,
        "The rank's operations that were handed to a device and whose end there is not known.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.untracked),
    ),
    counter(
        "torchdist.operations.failed",
        Unit.OPERATIONS,
        "The rank's operations that ended with an exception.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.failed),
    ),
)


_CALL: Final = ("run", "rpc_system_name", "rpc_method", "error_type")


def operation_durations(node: NodeSnapshot) -> Histograms:
    """Yield the durations of each operation of each group, by size."""
    for label, run in node.runs.items():
        for labels, one in run.timed.items():
            yield (label, *labels), one.durations


def step_durations(node: NodeSnapshot) -> Histograms:
    """Yield the durations of the steps of each run; a run without an ended step has no series."""
    for label, run in node.runs.items():
        if run.steps.count:
            yield (label,), run.steps


def call_durations(metric: str) -> Callable[[NodeSnapshot], Histograms]:
    """Make a reader of one side's remote procedure calls, by function and error."""

    def read(node: NodeSnapshot) -> Histograms:
        for label, run in node.runs.items():
            for (side, labels), durations in run.calls.items():
                if side == metric:
                    yield (label, *labels), durations

    return read


HISTOGRAM_METRICS: Final = (
    HistogramMetric(
        semconv.OPERATION_DURATION,
        "Durations of the node's operations, from entering the call, or the start on the device, to the end, "
        "by the size of a rank's contribution: an upper bound (4KiB to 256MiB), or larger.",
        _BY_SIZE,
        operation_durations,
    ),
    HistogramMetric(
        semconv.STEP_DURATION,
        "Durations of the steps of the node's ranks.",
        ("run",),
        step_durations,
    ),
    HistogramMetric(
        semconv.RPC_CLIENT_DURATION,
        "Durations of remote procedure calls of the node's ranks, as far as a thread waited for them.",
        _CALL,
        call_durations(semconv.RPC_CLIENT_DURATION),
    ),
    HistogramMetric(
        semconv.RPC_SERVER_DURATION,
        "Durations of functions in Python that the node's ranks have run for remote callers.",
        _CALL,
        call_durations(semconv.RPC_SERVER_DURATION),
    ),
)
