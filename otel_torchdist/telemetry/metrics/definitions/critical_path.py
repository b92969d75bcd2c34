"""The critical path through the newest steps."""

from __future__ import annotations

from typing import Final

from otel_torchdist import semconv
from otel_torchdist.semconv import LABEL_OPERATION, LABEL_RUN
from otel_torchdist.telemetry.metrics.definitions.series import BY_RANK
from otel_torchdist.telemetry.metrics.model import MetricKind, NumberMetric, Numbers, Unit
from otel_torchdist.telemetry.metrics.snapshots import NodeSnapshot


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


PATH_METRICS: Final = (
    NumberMetric(
        semconv.PATH_SECONDS,
        MetricKind.GAUGE,
        Unit.SECONDS,
        "Length of the critical path through an average one of the newest steps, by what happens on it; only where the "
        "run is judged.",
        (LABEL_RUN, semconv.LABEL_KIND),
        path_kinds,
    ),
    NumberMetric(
        semconv.PATH_RANK_SECONDS,
        MetricKind.GAUGE,
        Unit.SECONDS,
        "How long the rank computes on that path, of the 16 ranks that do so longest.",
        BY_RANK,
        path_ranks,
    ),
    NumberMetric(
        semconv.PATH_GAIN_SECONDS,
        MetricKind.GAUGE,
        Unit.SECONDS,
        "What such a step would be shorter at most without one cause: a line, rank, node or stage that computes longer "
        "than its peers, or a transfer; at most eight.",
        (LABEL_RUN, semconv.LABEL_CAUSE, semconv.LABEL_RANKS, LABEL_OPERATION),
        path_gains,
    ),
)
