"""Operations of ranks: how many, how large, how long, and how far each group has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from otel_torchdist import semconv
from otel_torchdist.semconv import LABEL_GROUP, LABEL_OPERATION, LABEL_RUN
from otel_torchdist.telemetry.metrics.definitions.series import BY_GROUP, BY_OPERATION, BY_RANK, of_operation, of_rank
from otel_torchdist.telemetry.metrics.model import MetricKind, NumberMetric, Numbers, Unit
from otel_torchdist.telemetry.metrics.snapshots import GroupSnapshot, NodeSnapshot

_SIZED: Final = (LABEL_RUN, LABEL_GROUP, LABEL_OPERATION, semconv.LABEL_MESSAGE_SIZE)


def of_group(value: Callable[[GroupSnapshot], int | None]) -> Callable[[NodeSnapshot], Numbers]:
    """Make a reader of one number per group of each rank; groups with None have no series."""

    def read(node: NodeSnapshot) -> Numbers:
        for rank in node.ranks:
            for group in rank.groups:
                number = value(group)
                if number is not None:
                    yield (rank.run, str(rank.rank), group.group), number

    return read


def timed_bytes(node: NodeSnapshot) -> Numbers:
    """Bytes contributed to these operations."""
    for label, run in node.runs.items():
        for labels, one in run.timed.items():
            yield (label, *labels), one.message_bytes


OPERATION_METRICS: Final = (
    NumberMetric(
        semconv.OPERATIONS_IN_FLIGHT,
        MetricKind.UP_DOWN,
        Unit.OPERATIONS,
        "Operations that the rank has entered and that have not ended.",
        BY_OPERATION,
        of_operation(lambda one: one.in_flight),
    ),
    NumberMetric(
        semconv.OPERATION_OLDEST_AGE,
        MetricKind.GAUGE,
        Unit.SECONDS,
        "Age of the oldest operation in flight, 0 if there is none. It counts from the wait for an operation whose end "
        "only a wait can show, and from the start on the device for one that runs there.",
        BY_OPERATION,
        of_operation(lambda one: one.oldest_age_s),
    ),
    NumberMetric(
        semconv.OPERATIONS,
        MetricKind.COUNTER,
        Unit.OPERATIONS,
        "Operations that the rank has entered.",
        BY_OPERATION,
        of_operation(lambda one: one.entered),
    ),
    NumberMetric(
        semconv.MESSAGE_BYTES,
        MetricKind.COUNTER,
        Unit.BYTES,
        "Bytes that the rank has contributed to its operations.",
        BY_OPERATION,
        of_operation(lambda one: one.message_bytes),
    ),
    NumberMetric(
        semconv.TIMED_OPERATIONS,
        MetricKind.COUNTER,
        Unit.OPERATIONS,
        "The rank's operations whose duration is known; see the histogram of the node for its distribution.",
        BY_OPERATION,
        of_operation(lambda one: one.timed),
    ),
    NumberMetric(
        semconv.TIMED_OPERATION_SECONDS,
        MetricKind.COUNTER,
        Unit.SECONDS,
        "Sum of the rank's known operation durations.",
        BY_OPERATION,
        of_operation(lambda one: one.timed_s),
    ),
    NumberMetric(
        semconv.TIMED_MESSAGE_BYTES,
        MetricKind.COUNTER,
        Unit.BYTES,
        "Bytes that the node's ranks have contributed to operations whose duration is known.",
        _SIZED,
        timed_bytes,
    ),
    NumberMetric(
        semconv.BLOCKED_SECONDS,
        MetricKind.COUNTER,
        Unit.SECONDS,
        "Time in which a thread of the rank was inside an operation's call or inside a wait for one. "
        "Waits in C++, such as DDP's, are not seen.",
        BY_RANK,
        of_rank(lambda rank: rank.blocked_s),
    ),
    NumberMetric(
        semconv.COMMUNICATION_SECONDS,
        MetricKind.COUNTER,
        Unit.SECONDS,
        "Time with at least one operation of the rank in flight, whether it overlapped with computation or not.",
        BY_RANK,
        of_rank(lambda rank: rank.communicating_s),
    ),
    NumberMetric(
        semconv.LAST_STARTED_SEQUENCE,
        MetricKind.GAUGE,
        Unit.NONE,
        "Sequence number of the newest collective of the group that the rank has entered, or begun on its device.",
        BY_GROUP,
        of_group(lambda group: group.started_sequence),
    ),
    NumberMetric(
        semconv.LAST_COMPLETED_SEQUENCE,
        MetricKind.GAUGE,
        Unit.NONE,
        "Sequence number of the newest collective of the group that is known to have ended on the rank.",
        BY_GROUP,
        of_group(lambda group: group.completed_sequence),
    ),
    NumberMetric(
        semconv.OPERATIONS_UNTRACKED,
        MetricKind.COUNTER,
        Unit.OPERATIONS,
        "The rank's operations that were handed to a device and whose end there is not known.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.untracked),
    ),
    NumberMetric(
        semconv.OPERATIONS_FAILED,
        MetricKind.COUNTER,
        Unit.OPERATIONS,
        "The rank's operations that ended with an exception.",
        BY_RANK,
        of_rank(lambda rank: rank.totals.failed),
    ),
)
