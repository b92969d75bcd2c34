"""Measurements that are infinite or not a number: left out or shown, and never a failed export."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, generate_latest

from otel_torchdist.telemetry.export.exporters import readable_span
from otel_torchdist.telemetry.export.otlp_file import otlp_json
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.metrics.otel import OTelMetrics
from otel_torchdist.telemetry.metrics.prometheus import TorchDistCollector
from otel_torchdist.telemetry.metrics.snapshots import NodeSnapshot
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan
from tests.support.tapes.fake_tape import SECOND, FakeTape

SCALES = (math.nan, math.inf, 8.0)
"""Loss scales of ranks 0, 1 and 2."""


class Scaled(NodeMetrics):
    """A node whose ranks have these loss scales."""

    def snapshot(self) -> NodeSnapshot:
        """Set them."""
        node = super().snapshot()
        ranks = tuple(
            dataclasses.replace(rank, totals=dataclasses.replace(rank.totals, loss_scale=SCALES[rank.rank]))
            for rank in node.ranks
        )
        return dataclasses.replace(node, ranks=ranks)


@pytest.fixture
def node(tmp_path: Path) -> NodeMetrics:
    """Three ranks."""
    node = Scaled(lambda: 0, lambda: 100 * SECOND)
    for rank in range(len(SCALES)):
        tape = FakeTape(tmp_path, rank)
        tape.run(sequence=1)
        node.track(tape.reader).consume(tape.reader.poll(), tape.reader.status(), 0)
    return node


def test_pushed_metrics_have_only_finite_numbers(node: NodeMetrics, caplog: pytest.LogCaptureFixture) -> None:
    """The other series are pushed, and the SDK has nothing to warn of at every collection."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    OTelMetrics(node, provider)
    for _ in range(2):
        data = reader.get_metrics_data()
        assert data is not None
        [scope] = data.resource_metrics[0].scope_metrics
        [scale] = [metric for metric in scope.metrics if metric.name == "torchdist.amp.scale"]
        points = [point for point in scale.data.data_points if isinstance(point, NumberDataPoint)]
        assert [(dict(point.attributes or {})["torchdist.rank"], point.value) for point in points] == [(2, 8.0)]
        assert encode_metrics(data).ByteSize() > 0
    provider.shutdown()
    assert caplog.messages == []


def test_a_scrape_shows_infinity(node: NodeMetrics) -> None:
    """Prometheus can plot and compare +Inf, an overflow; NaN, which compares with nothing, has no series."""
    registry = CollectorRegistry()
    registry.register(TorchDistCollector(node.snapshot))
    lines = [
        line for line in generate_latest(registry).decode().splitlines() if line.startswith("torchdist_amp_scale{")
    ]
    assert [(line.split('rank="')[1][0], line.split()[-1]) for line in lines] == [("1", "+Inf"), ("2", "8.0")]


def test_files_of_spans_stay_json() -> None:
    """OTLP's JSON has words for such numbers, as protobuf defines; bare `NaN` would be no JSON."""
    attributes = {"nan": math.nan, "infinite": -math.inf, "list": [1.0, math.nan]}
    span = readable_span(FinishedSpan("all_reduce", 1, 2, None, 100, 200, attributes), Resource({}))

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    document = json.loads(otlp_json([span]), parse_constant=refuse)
    [sent] = document["resourceSpans"][0]["scopeSpans"][0]["spans"]
    values = {attribute["key"]: attribute["value"] for attribute in sent["attributes"]}
    assert values["nan"] == {"doubleValue": "NaN"}
    assert values["infinite"] == {"doubleValue": "-Infinity"}
