"""Durations of one rank's remote procedure calls, by side, function and error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from otel_torchdist import semconv
from otel_torchdist.model.activities import Activity
from otel_torchdist.model.activity_kinds import SIDES
from otel_torchdist.model.ends import BLOCKING, RAISED
from otel_torchdist.model.remote_calls import Side
from otel_torchdist.tape.names.reader import NamesReader
from otel_torchdist.telemetry.metrics.durations import DurationHistogram
from otel_torchdist.telemetry.metrics.labels import SeriesLabels
from otel_torchdist.telemetry.metrics.snapshots import Duration
from otel_torchdist.telemetry.spans.activities import SYSTEM
from otel_torchdist.telemetry.spans.operation import UNKNOWN_ERROR

_COUNTED: Final = (*BLOCKING, *RAISED)


def _metric_of(side: Side) -> str:
    match side:
        case Side.CALLER:
            return semconv.RPC_CLIENT_DURATION
        case Side.CALLEE:
            return semconv.RPC_SERVER_DURATION


_METRICS: Final = {kind: _metric_of(side) for kind, side in SIDES.items()}


class CallSeries(NamedTuple):
    """Calls that are counted together.

    Attributes:
        metric: The histogram of their side.
        labels: System, function, and the type of the error, '' if there is none.
    """

    metric: str
    labels: tuple[str, str, str]


class CallDurations:
    """Counts the calls whose end is known from a wait, from the function's own return, or from an exception.

    Attributes:
        durations: The histograms.
    """

    def __init__(self, names: NamesReader, labels: SeriesLabels) -> None:
        """Count nothing yet; `labels` are shared by all ranks of the job."""
        self.durations: dict[CallSeries, DurationHistogram] = {}
        self._names = names
        self._labels = labels

    def resume(self, durations: Iterable[tuple[CallSeries, DurationHistogram]]) -> None:
        """Continue from what another reader has counted."""
        for series, known in durations:
            self.durations.setdefault(series, DurationHistogram()).add(known)

    def count(self, activity: Activity) -> Duration | None:
        """Count an activity that has ended; returns its duration if it is such a call."""
        metric = _METRICS.get(activity.kind)
        if metric is None or activity.completed_ns is None or activity.how not in _COUNTED:
            return None
        error = self._names.text(activity.failure) or UNKNOWN_ERROR if activity.how in RAISED else ""
        method = self._names.text(activity.detail) or semconv.OTHER_METHOD
        series = CallSeries(metric, (SYSTEM, *self._labels.call(method, error)))
        seconds = (activity.completed_ns - activity.entered_ns) / 1e9
        self.durations.setdefault(series, DurationHistogram()).observe(seconds)
        return Duration(metric, series.labels, seconds)

    @property
    def copies(self) -> tuple[tuple[CallSeries, DurationHistogram], ...]:
        """The current histograms, as copies."""
        return tuple((series, one.copy()) for series, one in self.durations.items())
