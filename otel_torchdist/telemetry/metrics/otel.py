"""Exports the metrics through OpenTelemetry's metrics API, for push over OTLP."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final
from weakref import WeakKeyDictionary

from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation
from opentelemetry.util.types import AttributeValue

from otel_torchdist.guard import guarded
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.metrics.definitions import NUMBER_METRICS
from otel_torchdist.telemetry.metrics.definitions.operations import HISTOGRAM_METRICS
from otel_torchdist.telemetry.metrics.durations import BOUNDS_S
from otel_torchdist.telemetry.metrics.metric import HistogramMetric, Labels, MetricKind, NumberMetric, Unit
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.metrics.snapshots import Duration, NodeSnapshot
from otel_torchdist.telemetry.scope import scope

FRESH_S: Final = 1.0
"""Maximum age of a snapshot during a collection. A longer collection continues with a new snapshot."""
_INTEGER_LABELS: Final = ("rank", "size")


class OTelMetrics:
    """Exports a node's metrics to a provider, whose readers observe them at each collection.

    The API has no observable histogram. So durations are recorded one by one as ranks report them, on the thread that
    reads the tapes.
    """

    def __init__(self, node: NodeMetrics, provider: MeterProvider, fresh_s: float = FRESH_S) -> None:
        """Start the export.

        Args:
            node: The node. Only durations reported from now on are recorded.
            provider: The user's provider, or the result of `build_meter_provider_from_environment`.
            fresh_s: Maximum age of a snapshot during a collection.
        """
        self._fresh_s = fresh_s
        self._node = node
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._snapshot: NodeSnapshot | None = None
        self._metrics_read: set[str] = set()
        self._snapshot_s = 0.0
        self._instruments = _instruments.get(provider) or _instruments.setdefault(provider, _Instruments(provider))
        self._instruments.nodes += (self,)
        node.listen(self._instruments.record)

    def stop(self) -> None:
        """Stop the export. Idempotent."""
        if self not in self._instruments.nodes:
            return
        self._instruments.nodes = tuple(node for node in self._instruments.nodes if node is not self)
        self._node.ignore(self._instruments.record)

    def observe(self, metric: NumberMetric) -> list[Observation]:
        """Return the node's series of a metric."""
        # A forked child may keep running the SDK's reader, but its node is a stale copy.
        if os.getpid() != self._process:
            return []
        return [
            Observation(min(value, MAX_INTEGER), _attributes(metric.labels, labels))
            for labels, value in metric.read(self._snapshot_for(metric.name))
            if math.isfinite(value)  # the SDK logs each other number at every collection; older versions export it
        ]

    def _snapshot_for(self, name: str) -> NodeSnapshot:
        """Return the snapshot of this collection. A second read of the same metric starts the next collection."""
        with self._lock:
            now_s = time.monotonic()
            if self._snapshot is None or name in self._metrics_read or now_s - self._snapshot_s > self._fresh_s:
                self._snapshot, self._snapshot_s, self._metrics_read = self._node.snapshot(), now_s, set()
            self._metrics_read.add(name)
            return self._snapshot


MAX_INTEGER: Final = (1 << 63) - 1
"""The largest integer in OTLP. Counts of a forged tape may exceed it."""


class _Instruments:
    """The instruments of one provider.

    Attributes:
        nodes: The observed nodes.
    """

    def __init__(self, provider: MeterProvider) -> None:
        self.nodes: tuple[OTelMetrics, ...] = ()
        meter = provider.get_meter(*scope())
        self._histograms = {
            metric.otel_name: (_histogram(meter, metric), metric.labels) for metric in HISTOGRAM_METRICS
        }
        for metric in NUMBER_METRICS:
            _creator(meter, metric.kind)(
                metric.otel_name,
                callbacks=[self._callback(metric)],
                unit=metric.unit.value,
                description=metric.help,
            )

    def _callback(self, metric: NumberMetric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            observations: list[Observation] = []
            with guarded("the observation of metrics"):
                for node in self.nodes:
                    observations += node.observe(metric)
            return observations

        return observe

    def record(self, durations: Sequence[Duration]) -> None:
        for name, labels, seconds in durations:
            histogram, label_names = self._histograms[name]
            histogram.record(seconds, _attributes(label_names, labels))


# The SDK ignores callbacks for an existing instrument, and cannot remove instruments. So each provider gets its
# instruments once. Nodes are added and removed: by `uninstrument` and `instrument`, or when a job creates a new group.
_instruments: Final[WeakKeyDictionary[MeterProvider, _Instruments]] = WeakKeyDictionary()


def _histogram(meter: Meter, metric: HistogramMetric) -> Histogram:
    return meter.create_histogram(
        metric.otel_name,
        unit=Unit.SECONDS.value,
        description=metric.help,
        explicit_bucket_boundaries_advisory=BOUNDS_S,
    )


def _creator(meter: Meter, kind: MetricKind) -> Callable[..., object]:
    if kind is MetricKind.COUNTER:
        return meter.create_observable_counter
    if kind is MetricKind.UP_DOWN:
        return meter.create_observable_up_down_counter
    return meter.create_observable_gauge


def _attributes(names: Labels, values: Labels) -> Mapping[str, AttributeValue]:
    return {
        semconv.OTEL_METRIC_ATTRIBUTES[name]: int(value) if name in _INTEGER_LABELS else value
        for name, value in zip(names, values, strict=True)
        if value or name != "error_type"
    }
