"""Exponential histograms, chosen by OpenTelemetry's own variable."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint, Metric
from opentelemetry.sdk.resources import Resource

from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.export.providers import build_meter_provider_from_environment
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.metrics.otel import OTelMetrics
from tests.support.receivers.otlp_metrics_receiver import grpc_receiver, http_receiver
from tests.support.tapes.fake_tape import SECOND, FakeTape

VARIABLE = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
DURATIONS_S = (0.001, 0.002, 0.004, 3.0)


def pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str) -> Metric:
    """The histogram of operations that a receiver gets of a rank with these durations."""
    receiver_of = grpc_receiver if protocol == "grpc" else http_receiver
    with receiver_of() as receiver:
        monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        provider = build_meter_provider_from_environment(Resource({}))
        assert provider is not None
        node = NodeMetrics()
        metrics = OTelMetrics(node, provider)
        rank = FakeTape(tmp_path, rank=0)
        for sequence, duration_s in enumerate(DURATIONS_S, 1):
            rank.run(sequence=sequence, lasts=round(duration_s * SECOND))
        node.track(rank.reader).consume(rank.reader.poll(), rank.reader.status(), 0)
        provider.shutdown()
        metrics.stop()
        return receiver.metrics()[semconv.OPERATION_DURATION]


def counts_by_bound(point: ExponentialHistogramDataPoint) -> dict[float, int]:
    """The number of measurements by the inclusive upper bound of their bucket."""
    base = 2.0 ** (2.0**-point.scale)
    buckets = enumerate(point.positive.bucket_counts, point.positive.offset)
    return {base ** (index + 1): count for index, count in buckets if count}


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_exponential_histograms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    """Every duration is in a bucket within 10 % of it, from a millisecond to seconds, without bounds of ours."""
    monkeypatch.setenv(VARIABLE, "base2_exponential_bucket_histogram")
    metric = pushed(tmp_path, monkeypatch, protocol)
    assert metric.WhichOneof("data") == "exponential_histogram"
    [point] = metric.exponential_histogram.data_points
    assert (point.count, point.sum) == (4, pytest.approx(sum(DURATIONS_S)))
    bounds = counts_by_bound(point)
    assert sum(bounds.values()) == 4
    for duration_s, bound in zip(DURATIONS_S, bounds, strict=True):
        assert duration_s <= bound * 1.000_001 < duration_s * 1.1
    assert len(point.SerializeToString()) < 500, "the bound that keeps a request below gRPC's 4 MiB"


def test_explicit_histograms_are_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable, buckets are as on `/metrics`."""
    metric = pushed(tmp_path, monkeypatch, "grpc")
    assert metric.WhichOneof("data") == "histogram"


def test_unknown_aggregation_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The SDK warns of a value that it does not know, and explicit buckets are used."""
    monkeypatch.setenv(VARIABLE, "native")
    metric = pushed(tmp_path, monkeypatch, "grpc")
    assert metric.WhichOneof("data") == "histogram"
    assert any(VARIABLE in text and "explicit" in text for text in caplog.messages)
