"""The histograms of a node's durations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from otel_torchdist import semconv
from otel_torchdist.semconv import LABEL_GROUP, LABEL_OPERATION, LABEL_RUN
from otel_torchdist.telemetry.metrics.model import HistogramMetric, Histograms
from otel_torchdist.telemetry.metrics.snapshots import NodeSnapshot

_SIZED: Final = (LABEL_RUN, LABEL_GROUP, LABEL_OPERATION, semconv.LABEL_MESSAGE_SIZE)
_CALL: Final = (LABEL_RUN, semconv.LABEL_RPC_SYSTEM, semconv.LABEL_RPC_METHOD, semconv.LABEL_ERROR_TYPE)


def operation_durations(node: NodeSnapshot) -> Histograms:
    """Durations of each operation of each group, by size."""
    for label, run in node.runs.items():
        for labels, one in run.timed.items():
            yield (label, *labels), one.durations


def step_durations(node: NodeSnapshot) -> Histograms:
    """Durations of the steps of each run; a run without an ended step has no series."""
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
        _SIZED,
        operation_durations,
    ),
    HistogramMetric(
        semconv.STEP_DURATION,
        "Durations of the steps of the node's ranks.",
        (LABEL_RUN,),
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
