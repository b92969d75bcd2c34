"""The table of all metrics: their names, their meanings, and where their values come from.

The Prometheus and the OpenTelemetry metrics are both built from it, so they cannot disagree.
"""

from __future__ import annotations

from typing import Final

from otel_torchdist import semconv
from otel_torchdist.semconv import LABEL_GROUP, LABEL_OPERATION, LABEL_RANK, LABEL_RUN
from otel_torchdist.telemetry.metrics.model import HistogramMetric, Kind, NumberMetric, Unit
from otel_torchdist.telemetry.metrics.readers import (
    arrivals,
    finding_info,
    group_info,
    group_members,
    last_arrivals,
    lateness,
    of_group,
    of_operation,
    of_rank,
    operation_durations,
    path_gains,
    path_kinds,
    path_ranks,
    stall_info,
    stalled,
    step_durations,
    timed_bytes,
    waited,
)

_RANK: Final = (LABEL_RUN, LABEL_RANK)
_GROUP: Final = (LABEL_RUN, LABEL_RANK, LABEL_GROUP)
_OPERATION: Final = (LABEL_RUN, LABEL_RANK, LABEL_GROUP, LABEL_OPERATION)
_SIZED: Final = (LABEL_RUN, LABEL_GROUP, LABEL_OPERATION, semconv.LABEL_MESSAGE_SIZE)

NUMBER_METRICS: Final = (
    NumberMetric(
        semconv.UP,
        Kind.GAUGE,
        Unit.NONE,
        "1 while the rank's process is alive, 0 after it has failed or died, no series after it has finished.",
        _RANK,
        of_rank(lambda rank: None if rank.up is None else int(rank.up)),
    ),
    NumberMetric(
        semconv.STALLED_METRIC,
        Kind.GAUGE,
        Unit.NONE,
        "1 while the run is stalled and this group's operation is the cause, else 0.",
        (LABEL_RUN, LABEL_GROUP),
        stalled,
    ),
    NumberMetric(
        semconv.STALL_INFO,
        Kind.INFO,
        Unit.NONE,
        "The verdict on a stall, while it lasts: ranks that the verdict names, and the trace that shows it.",
        (
            LABEL_RUN,
            LABEL_GROUP,
            LABEL_OPERATION,
            semconv.LABEL_VERDICT,
            semconv.LABEL_RANKS,
            semconv.LABEL_COVERAGE,
            semconv.LABEL_TRACE_ID,
        ),
        stall_info,
    ),
    NumberMetric(
        semconv.OPERATIONS_IN_FLIGHT,
        Kind.UP_DOWN,
        Unit.OPERATIONS,
        "Operations that the rank has entered and that have not ended.",
        _OPERATION,
        of_operation(lambda one: one.in_flight),
    ),
    NumberMetric(
        semconv.OPERATION_OLDEST_AGE,
        Kind.GAUGE,
        Unit.SECONDS,
        "Age of the oldest operation in flight, 0 if there is none. It counts from the wait for an operation whose end "
        "only a wait can show, and from the start on the device for one that runs there.",
        _OPERATION,
        of_operation(lambda one: one.oldest_age_s),
    ),
    NumberMetric(
        semconv.OPERATIONS,
        Kind.COUNTER,
        Unit.OPERATIONS,
        "Operations that the rank has entered.",
        _OPERATION,
        of_operation(lambda one: one.entered),
    ),
    NumberMetric(
        semconv.MESSAGE_BYTES,
        Kind.COUNTER,
        Unit.BYTES,
        "Bytes that the rank has contributed to its operations.",
        _OPERATION,
        of_operation(lambda one: one.message_bytes),
    ),
    NumberMetric(
        semconv.TIMED_OPERATIONS,
        Kind.COUNTER,
        Unit.OPERATIONS,
        "The rank's operations whose duration is known; see the histogram of the node for its distribution.",
        _OPERATION,
        of_operation(lambda one: one.timed),
    ),
    NumberMetric(
        semconv.TIMED_OPERATION_SECONDS,
        Kind.COUNTER,
        Unit.SECONDS,
        "Sum of the rank's known operation durations.",
        _OPERATION,
        of_operation(lambda one: one.timed_s),
    ),
    NumberMetric(
        semconv.TIMED_MESSAGE_BYTES,
        Kind.COUNTER,
        Unit.BYTES,
        "Bytes that the node's ranks have contributed to operations whose duration is known.",
        _SIZED,
        timed_bytes,
    ),
    NumberMetric(
        semconv.BLOCKED_SECONDS,
        Kind.COUNTER,
        Unit.SECONDS,
        "Time in which a thread of the rank was inside an operation's call or inside a wait for one. "
        "Waits in C++, such as DDP's, are not seen.",
        _RANK,
        of_rank(lambda rank: rank.blocked_s),
    ),
    NumberMetric(
        semconv.COMMUNICATION_SECONDS,
        Kind.COUNTER,
        Unit.SECONDS,
        "Time with at least one operation of the rank in flight, whether it overlapped with computation or not.",
        _RANK,
        of_rank(lambda rank: rank.communicating_s),
    ),
    NumberMetric(
        semconv.LAST_STARTED_SEQUENCE,
        Kind.GAUGE,
        Unit.NONE,
        "Sequence number of the newest collective of the group that the rank has entered, or begun on its device.",
        _GROUP,
        of_group(lambda group: group.started_sequence),
    ),
    NumberMetric(
        semconv.LAST_COMPLETED_SEQUENCE,
        Kind.GAUGE,
        Unit.NONE,
        "Sequence number of the newest collective of the group that is known to have ended on the rank.",
        _GROUP,
        of_group(lambda group: group.completed_sequence),
    ),
    NumberMetric(
        semconv.FINDING_INFO,
        Kind.INFO,
        Unit.NONE,
        "A finding without a stall: calls that do not match (mismatched), or, while it holds, a rank that always comes "
        "last (straggler), and what makes steps a tenth longer or more (slow_rank, slow_node, slow_stage).",
        (
            LABEL_RUN,
            LABEL_GROUP,
            LABEL_OPERATION,
            semconv.LABEL_VERDICT,
            semconv.LABEL_RANKS,
            semconv.LABEL_TRACE_ID,
        ),
        finding_info,
    ),
    NumberMetric(
        semconv.ARRIVALS,
        Kind.COUNTER,
        Unit.OPERATIONS,
        "Collectives of the group for which the arrival times of the node's ranks were compared.",
        (LABEL_RUN, LABEL_GROUP),
        arrivals,
    ),
    NumberMetric(
        semconv.LAST_ARRIVALS,
        Kind.COUNTER,
        Unit.OPERATIONS,
        "Compared collectives at which the rank arrived last.",
        _GROUP,
        last_arrivals,
    ),
    NumberMetric(
        semconv.LATENESS,
        Kind.COUNTER,
        Unit.SECONDS,
        "Time that the other ranks of the node waited in compared collectives for this rank alone.",
        _GROUP,
        lateness,
    ),
    NumberMetric(
        semconv.WAITED_SECONDS,
        Kind.COUNTER,
        Unit.SECONDS,
        "Time that a rank of the node waited in compared collectives for the last one, averaged over the node's ranks.",
        (LABEL_RUN, LABEL_GROUP),
        waited,
    ),
    NumberMetric(
        semconv.PATH_SECONDS,
        Kind.GAUGE,
        Unit.SECONDS,
        "Length of the critical path through an average one of the newest steps, by what happens on it; only where the "
        "run is judged.",
        (LABEL_RUN, semconv.LABEL_KIND),
        path_kinds,
    ),
    NumberMetric(
        semconv.PATH_RANK_SECONDS,
        Kind.GAUGE,
        Unit.SECONDS,
        "How long the rank computes on that path, of the 16 ranks that do so longest.",
        _RANK,
        path_ranks,
    ),
    NumberMetric(
        semconv.PATH_GAIN_SECONDS,
        Kind.GAUGE,
        Unit.SECONDS,
        "What such a step would be shorter at most without one cause: a line, rank, node or stage that computes longer "
        "than its peers, or a transfer; at most eight.",
        (LABEL_RUN, semconv.LABEL_CAUSE, semconv.LABEL_RANKS, LABEL_OPERATION),
        path_gains,
    ),
    NumberMetric(
        semconv.TIMED_STEPS,
        Kind.COUNTER,
        Unit.STEPS,
        "The rank's steps whose duration is known.",
        _RANK,
        of_rank(lambda rank: rank.steps.count),
    ),
    NumberMetric(
        semconv.TIMED_STEP_SECONDS,
        Kind.COUNTER,
        Unit.SECONDS,
        "Sum of the rank's known step durations.",
        _RANK,
        of_rank(lambda rank: rank.steps.sum_s),
    ),
    NumberMetric(
        semconv.GROUP_INFO,
        Kind.INFO,
        Unit.NONE,
        "What a group is for and how many members it has.",
        (LABEL_RUN, LABEL_GROUP, semconv.LABEL_DESCRIPTION, semconv.LABEL_SIZE),
        group_info,
    ),
    NumberMetric(
        semconv.GROUP_MEMBERS,
        Kind.GAUGE,
        Unit.NONE,
        "How many members a group has.",
        (LABEL_RUN, LABEL_GROUP),
        group_members,
    ),
    NumberMetric(
        semconv.GROUPS_FOLDED,
        Kind.COUNTER,
        Unit.GROUPS,
        'Groups of the rank that are counted under group="other", because the node has too many.',
        _RANK,
        of_rank(lambda rank: rank.groups_folded),
    ),
    NumberMetric(
        semconv.OVERHEAD,
        Kind.COUNTER,
        Unit.SECONDS,
        "Estimated time that the instrumentation has taken on the rank's threads.",
        _RANK,
        of_rank(lambda rank: rank.overhead_s),
    ),
    NumberMetric(
        semconv.RECORDS_LOST,
        Kind.COUNTER,
        Unit.RECORDS,
        "Records that the rank could not write, or that were overwritten before they were read.",
        _RANK,
        of_rank(lambda rank: rank.records_lost),
    ),
    NumberMetric(
        semconv.NAMES_DROPPED,
        Kind.COUNTER,
        Unit.NAMES,
        "Names of groups, call sites, labels and operations that did not fit into the rank's dictionary.",
        _RANK,
        of_rank(lambda rank: rank.names_dropped),
    ),
    NumberMetric(
        semconv.OPERATIONS_UNTRACKED,
        Kind.COUNTER,
        Unit.OPERATIONS,
        "The rank's operations that were handed to a device and whose end there is not known.",
        _RANK,
        of_rank(lambda rank: rank.totals.untracked),
    ),
    NumberMetric(
        semconv.OPERATIONS_FAILED,
        Kind.COUNTER,
        Unit.OPERATIONS,
        "The rank's operations that ended with an exception.",
        _RANK,
        of_rank(lambda rank: rank.totals.failed),
    ),
    NumberMetric(
        semconv.SPANS_DROPPED,
        Kind.COUNTER,
        Unit.SPANS,
        "Spans that could not be exported, or that a receiver rejected in a request that it accepted.",
        (),
        lambda node: (((), node.spans_dropped),),
    ),
    NumberMetric(
        semconv.ARCHIVE_DROPPED,
        Kind.COUNTER,
        Unit.OPERATIONS,
        "Operations that could not be archived; no series without an archive.",
        (),
        lambda node: () if node.archive_dropped is None else (((), node.archive_dropped),),
    ),
)

HISTOGRAM_METRICS: Final = (
    HistogramMetric(
        semconv.OPERATION_DURATION,
        "Durations of the node's operations, from entering the call, or the start on the device, to the end, "
        "by the size of a rank's contribution: an upper bound (4KiB to 256MiB), or larger.",
        _SIZED,
        operation_durations,
    ),
    HistogramMetric(
        semconv.STEP_DURATION,
        "Durations of the steps of the node's ranks.",
        (LABEL_RUN,),
        step_durations,
    ),
)
