"""What is recorded and exported of a run, what that costs, and what is lost."""

from __future__ import annotations

from typing import Final

from otel_torchdist import semconv
from otel_torchdist.model.kinds import Kernel
from otel_torchdist.semconv import LABEL_GROUP, LABEL_RUN
from otel_torchdist.telemetry.metrics.definitions.series import BY_RANK, of_rank
from otel_torchdist.telemetry.metrics.model import MetricKind, NumberMetric, Numbers, Unit
from otel_torchdist.telemetry.metrics.snapshots import NodeSnapshot


def group_info(node: NodeSnapshot) -> Numbers:
    """Purpose and size of each group."""
    for label, run in node.runs.items():
        for group, info in run.groups.items():
            yield (label, group, info.description, str(info.size)), 1


def group_members(node: NodeSnapshot) -> Numbers:
    """Number of members of each group."""
    for label, run in node.runs.items():
        for group, info in run.groups.items():
            yield (label, group), info.size


def capture_info(node: NodeSnapshot) -> Numbers:
    """What records each rank; ranks whose tape does not say it have no series."""
    for rank in node.ranks:
        if rank.kernel is not Kernel.UNKNOWN:
            yield (rank.run, str(rank.rank), rank.kernel.name.lower(), rank.torch), 1


RECORDING_METRICS: Final = (
    NumberMetric(
        semconv.GROUP_INFO,
        MetricKind.INFO,
        Unit.NONE,
        "What a group is for and how many members it has.",
        (LABEL_RUN, LABEL_GROUP, semconv.LABEL_DESCRIPTION, semconv.LABEL_SIZE),
        group_info,
    ),
    NumberMetric(
        semconv.GROUP_MEMBERS,
        MetricKind.GAUGE,
        Unit.NONE,
        "How many members a group has.",
        (LABEL_RUN, LABEL_GROUP),
        group_members,
    ),
    NumberMetric(
        semconv.GROUPS_FOLDED,
        MetricKind.COUNTER,
        Unit.GROUPS,
        'Groups of the rank that are counted under group="other", because the node has too many.',
        BY_RANK,
        of_rank(lambda rank: rank.groups_folded),
    ),
    NumberMetric(
        semconv.CAPTURE_INFO,
        MetricKind.INFO,
        Unit.NONE,
        "What records the rank's calls (native or python), and the version of its torch.",
        (*BY_RANK, semconv.LABEL_KERNEL, semconv.LABEL_TORCH),
        capture_info,
    ),
    NumberMetric(
        semconv.OVERHEAD,
        MetricKind.COUNTER,
        Unit.SECONDS,
        "Estimated time that the instrumentation has taken on the rank's threads.",
        BY_RANK,
        of_rank(lambda rank: rank.overhead_s),
    ),
    NumberMetric(
        semconv.RECORDS_LOST,
        MetricKind.COUNTER,
        Unit.RECORDS,
        "Records that the rank could not write, or that were overwritten before they were read.",
        BY_RANK,
        of_rank(lambda rank: rank.records_lost),
    ),
    NumberMetric(
        semconv.NAMES_DROPPED,
        MetricKind.COUNTER,
        Unit.NAMES,
        "Names of groups, call sites, labels and operations that did not fit into the rank's dictionary.",
        BY_RANK,
        of_rank(lambda rank: rank.names_dropped),
    ),
    NumberMetric(
        semconv.SPANS_DROPPED,
        MetricKind.COUNTER,
        Unit.SPANS,
        "Spans that could not be exported, or that a receiver rejected in a request that it accepted.",
        (),
        lambda node: (((), node.spans_dropped),),
    ),
    NumberMetric(
        semconv.ARCHIVE_DROPPED,
        MetricKind.COUNTER,
        Unit.OPERATIONS,
        "Operations that could not be archived; no series without an archive.",
        (),
        lambda node: () if node.archive_dropped is None else (((), node.archive_dropped),),
    ),
)
