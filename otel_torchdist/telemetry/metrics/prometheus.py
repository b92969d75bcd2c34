"""The metrics as a collector for prometheus_client. It works only during a scrape."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Final, TypeAlias

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as Sample

from otel_torchdist.guard import guarded
from otel_torchdist.telemetry.metrics.definitions import NUMBER_METRICS
from otel_torchdist.telemetry.metrics.definitions.operations import HISTOGRAM_METRICS
from otel_torchdist.telemetry.metrics.durations import BOUNDS_S, DurationHistogram, Exemplar
from otel_torchdist.telemetry.metrics.metric import HistogramMetric, MetricKind, NumberMetric, Unit
from otel_torchdist.telemetry.metrics.snapshots import NodeSnapshot

_Bucket: TypeAlias = tuple[str, float] | tuple[str, float, Sample]

_UNITS: Final = {Unit.SECONDS: "seconds", Unit.BYTES: "bytes"}
_BUCKETS: Final = (*(str(bound) for bound in BOUNDS_S), "+Inf")


class TorchDistCollector(Collector):
    """A collector of the current metrics of a node."""

    def __init__(self, snapshot: Callable[[], NodeSnapshot]) -> None:
        """Collect from `snapshot`, which is called once per scrape on the scraper's thread."""
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registration needs no snapshot."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return all metrics. Errors in our code are logged and do not fail other collectors of the registry."""
        families: list[Metric] = []
        with guarded("the collection of metrics"):
            node = self._snapshot()
            families += [_number_family(metric, node) for metric in NUMBER_METRICS]
            families += [_histogram_family(metric, node) for metric in HISTOGRAM_METRICS]
        return families


def _number_family(metric: NumberMetric, node: NodeSnapshot) -> Metric:
    if metric.kind is MetricKind.INFO:
        info = InfoMetricFamily(metric.name.removesuffix("_info"), metric.help, labels=())
        for labels, _ in metric.read(node):
            info.add_metric((), dict(zip(metric.labels, labels, strict=True)))
        return info
    cls = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    family = cls(metric.name, metric.help, labels=metric.labels, unit=_UNITS.get(metric.unit, ""))
    for labels, value in metric.read(node):
        if not math.isnan(value):  # an infinite value shows an overflow, but NaN compares with nothing in a rule
            family.add_metric(labels, value)
    return family


def _histogram_family(metric: HistogramMetric, node: NodeSnapshot) -> Metric:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels, unit="seconds")
    for labels, histogram in metric.read(node):
        family.add_metric(labels, _buckets(histogram), histogram.sum_s)
    return family


def _buckets(histogram: DurationHistogram) -> list[_Bucket]:
    buckets: list[_Bucket] = []
    for number, (bound, count) in enumerate(zip(_BUCKETS, accumulate(histogram.counts), strict=True)):
        exemplar = histogram.exemplars.get(number)
        buckets.append((bound, count) if exemplar is None else (bound, count, _sample(exemplar)))
    return buckets


def _sample(exemplar: Exemplar) -> Sample:
    """Convert an exemplar. Only OpenMetrics, the format requested by Prometheus, includes exemplars."""
    return Sample({"trace_id": f"{exemplar.trace_id:032x}"}, exemplar.seconds, exemplar.wall_s)
