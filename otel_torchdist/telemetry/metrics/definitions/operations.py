"""Metrics of operations and remote calls: counts, sizes, durations, and the progress of each group."""

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
    """Return a reader of one number per group of each rank. Groups with None have no series."""

    def read(node: NodeSnapshot) -> Numbers:
        for rank in node.ranks:
            for group in rank.groups:
                number = value(group)
                if number is not None:
                    yield (rank.run, str(rank.rank), group.group), number

    return read


def timed_bytes(node: NodeSnapshot) -> Numbers:
    """Yield the bytes contributed to operations with known durations."""
    for label, run in node.runs.items():
        for labels, timed in run.timed.items():
            yield (label, *labels), timed.message_bytes


OLDEST_AGE: Final = gauge(
    "torchdist.operation.oldest_age",
    Unit.SECONDS,
    "Age of the oldest operation in flight, or 0. The age is counted from the call; from the start on the device for "
    "an operation that runs there; or from the wait for an operation whose end only a wait can show.",
    BY_OPERATION,
    of_operation(lambda operation: operation.oldest_age_s),
)
LAST_STARTED_SEQUENCE: Final = gauge(
    "torchdist.last_started_sequence",
    Unit.NONE,
    "Sequence number of the newest collective of the group that the rank has entered, or started on its device.",
    BY_GROUP,
    of_group(lambda group: group.started_sequence),
)
OPERATION_METRICS: Final = (
    NumberMetric(
        "torchdist.operations.in_flight",
        MetricKind.UP_DOWN,
        Unit.OPERATIONS,
        "Operations of the rank in flight.",
        BY_OPERATION,
        of_operation(lambda operation: operation.in_flight),
    ),
    OLDEST_AGE,
    counter(
        "torchdist.operations",
        Unit.OPERATIONS,
        "Operations that the rank has entered.",
        BY_OPERATION,
        of_operation(lambda operation: operation.entered),
    ),
    counter(
        "torchdist.message",
        Unit.BYTES,
        "Bytes that the rank has contributed to its operations.",
        BY_OPERATION,
        of_operation(lambda operation: operation.message_bytes),
    ),
    counter(
        "torchdist.timed_operations",
        Unit.OPERATIONS,
        "Operations of the rank with a known duration; of asynchronous ones on devices a sample. The histogram of the "
        "node has the distribution.",
        BY_OPERATION,
        of_operation(lambda operation: operation.timed),
    ),
    counter(
        "torchdist.timed_operation",
        Unit.SECONDS,
        "Sum of the known durations of the rank's operations.",
        BY_OPERATION,
        of_operation(lambda operation: operation.timed_s),
    ),
    counter(
        "torchdist.timed_message",
        Unit.BYTES,
        "Bytes that the node's ranks have contributed to operations with a known duration.",
        _BY_SIZE,
        timed_bytes,
    ),
    counter(
        "torchdist.blocked",
        Unit.SECONDS,
        "Time during which a thread of the rank was inside the call of an operation or inside a wait for it. "
        "Waits in C++, such as DDP's, are not included.",
        BY_RANK,
        of_rank(lambda rank: rank.blocked_s),
    ),
    counter(
        "torchdist.communication",
        Unit.SECONDS,
        "Time during which an operation of the rank was in flight, including time overlapped with computation. An "
        "upper bound for asynchronous operations on devices: most ends are known up to 0.1 s late, with nccl2 1 s.",
        BY_RANK,
        of_rank(lambda rank: rank.communicating_s),
    ),
    LAST_STARTED_SEQUENCE,
    gauge(
        "torchdist.last_completed_sequence",
        Unit.NONE,
        "Sequence number of the newest collective of the group known to have ended on the rank.",
        BY_GROUP,
        of_group(lambda group: group.completed_sequence),
    ),
    counter(
        "torchdist.operations.untracked",
        Unit.OPERATIONS,
        "Operations that the rank enqueued on a device and whose end on the device is unknown.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.untracked),
    ),
    counter(
        "torchdist.operations.failed",
        Unit.OPERATIONS,
        "Operations of the rank that ended with an exception.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.failed),
    ),
)


_CALL: Final = ("run", "rpc_system_name", "rpc_method", "error_type")


def operation_durations(node: NodeSnapshot) -> Histograms:
    """Yield the durations of each operation of each group, by size."""
    for label, run in node.runs.items():
        for labels, timed in run.timed.items():
            yield (label, *labels), timed.durations


def step_durations(node: NodeSnapshot) -> Histograms:
    """Yield the durations of the steps of each run. Runs without an ended step have no series."""
    for label, run in node.runs.items():
        if run.steps.count:
            yield (label,), run.steps


def call_durations(metric: str) -> Callable[[NodeSnapshot], Histograms]:
    """Return a reader of the durations of one side's remote procedure calls, by function and error."""

    def read(node: NodeSnapshot) -> Histograms:
        for label, run in node.runs.items():
            for (side, labels), durations in run.calls.items():
                if side == metric:
                    yield (label, *labels), durations

    return read


HISTOGRAM_METRICS: Final = (
    HistogramMetric(
        semconv.OPERATION_DURATION,
        "Durations of the node's operations, from the call or the start on the device to the end. message_size is the "
        "class of the bytes contributed by the rank: an upper bound from 4KiB to 256MiB, or larger.",
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
        "Durations of remote procedure calls that a thread of the node's ranks waited for.",
        _CALL,
        call_durations(semconv.RPC_CLIENT_DURATION),
    ),
    HistogramMetric(
        semconv.RPC_SERVER_DURATION,
        "Durations of Python functions that the node's ranks have run for remote callers.",
        _CALL,
        call_durations(semconv.RPC_SERVER_DURATION),
    ),
)
