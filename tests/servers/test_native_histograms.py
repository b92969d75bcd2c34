"""Histograms and names in a real Prometheus: pushed over OTLP, and scraped from `/metrics`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, start_http_server

from deploy.native.ports import HOST, free_port
from deploy.native.program import Program, Running
from deploy.native.prometheus_api import PrometheusApi
from otel_torchdist.telemetry.export.providers import build_meter_provider_from_environment
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.metrics.otel import OTelMetrics
from otel_torchdist.telemetry.metrics.prometheus import TorchDistCollector
from tests.support.tapes.fake_tape import SECOND, FakeTape

NAME = "torchdist_operation_duration_seconds"
CONFIG = """
scrape_configs:
  - job_name: torchdist
    scrape_interval: 1s
    scrape_native_histograms: true
    convert_classic_histograms_to_nhcb: true
    static_configs: [{targets: ["HOST:PORT"]}]
"""
"""Prometheus converts classic histograms without losing a bucket: native histograms with custom buckets."""

NO_TRANSLATION = "otlp: {translation_strategy: NoTranslation}"
"""Prometheus stores names as they are in OpenTelemetry, with dots: UTF-8 names."""


@pytest.fixture
def prometheus(binaries: Path, tmp_path: Path) -> Program:
    """A Prometheus that accepts OTLP; a test may add what it scrapes."""
    port = free_port()
    config = tmp_path / "prometheus.yml"
    config.write_text("{}")
    return Program(
        "prometheus",
        (
            binaries / "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={HOST}:{port}",
            "--web.enable-otlp-receiver",
        ),
        tmp_path,
        f"http://{HOST}:{port}/-/ready",
    )


@pytest.fixture
def node(tmp_path: Path) -> tuple[NodeMetrics, FakeTape]:
    """A node without measurements, and a tape to write them to."""
    return NodeMetrics(), FakeTape(tmp_path, rank=0)


def run(node: tuple[NodeMetrics, FakeTape], lasts_s: tuple[float, ...]) -> None:
    """Have the rank make calls of these durations."""
    metrics, tape = node
    for sequence, seconds in enumerate(lasts_s, 1):
        tape.run(sequence=sequence, lasts=round(seconds * SECOND))
    metrics.track(tape.reader).consume(tape.reader.poll(), tape.reader.status(), 0)


def queried(url: str, expression: str) -> list[float]:
    """The values of an expression, as soon as there are any."""
    api, deadline = PrometheusApi(url), time.monotonic() + 30
    while not (found := [sample.value for sample in api.query(expression)]):
        assert time.monotonic() < deadline, f"no {expression}"
        time.sleep(0.2)
    return found


@pytest.fixture
def url(prometheus: Program, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where that Prometheus is, to which this process pushes its metrics."""
    url = prometheus.ready.removesuffix("/-/ready")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{url}/api/v1/otlp/v1/metrics")
    return url


def push(node: tuple[NodeMetrics, FakeTape]) -> None:
    """Have the rank make four calls, and push its metrics."""
    provider = build_meter_provider_from_environment(Resource({"service.name": "training"}))
    assert provider is not None
    metrics = OTelMetrics(node[0], provider)
    run(node, (0.001, 0.002, 0.004, 3.0))
    provider.shutdown()
    metrics.stop()


def test_exponential_histograms_over_otlp(
    prometheus: Program, url: str, node: tuple[NodeMetrics, FakeTape], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They become native histograms, whose functions need no buckets of ours."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "base2_exponential_bucket_histogram")
    with Running(prometheus):
        push(node)
        assert queried(url, f"histogram_count({NAME})") == [4.0]
        assert queried(url, f"histogram_sum({NAME})") == [pytest.approx(3.007)]
        [slowest] = queried(url, f"histogram_quantile(1, {NAME})")
    assert slowest == pytest.approx(3.0, rel=0.1)


def test_names_over_otlp_are_those_of_metrics(
    prometheus: Program, url: str, node: tuple[NodeMetrics, FakeTape]
) -> None:
    """By default, Prometheus turns a pushed name into the one on `/metrics`, and an attribute into a label."""
    with Running(prometheus):
        push(node)
        assert queried(url, f'{NAME}_count{{torchdist_operation="all_reduce"}}') == [4.0]


def test_utf8_names_over_otlp(prometheus: Program, url: str, node: tuple[NodeMetrics, FakeTape]) -> None:
    """Without translation, Prometheus keeps OpenTelemetry's names, which a query quotes."""
    (prometheus.home / "prometheus.yml").write_text(NO_TRANSLATION)
    with Running(prometheus):
        push(node)
        assert queried(url, '{"torchdist.operation.duration_count","torchdist.operation"="all_reduce"}') == [4.0]
        assert PrometheusApi(url).query(f"{NAME}_count") == []


def test_histograms_of_a_scrape_are_converted(prometheus: Program, node: tuple[NodeMetrics, FakeTape]) -> None:
    """One setting of Prometheus stores the buckets of `/metrics` as one native histogram each."""
    url = prometheus.ready.removesuffix("/-/ready")
    run(node, (0.001, 0.002, 0.004, 3.0))
    registry = CollectorRegistry()
    registry.register(TorchDistCollector(node[0].snapshot))
    page, thread = start_http_server(0, HOST, registry)
    (prometheus.home / "prometheus.yml").write_text(CONFIG.replace("HOST", HOST).replace("PORT", str(page.server_port)))
    try:
        with Running(prometheus):
            assert queried(url, f"histogram_count({NAME})") == [4.0]
            assert queried(url, f"histogram_fraction(0, 0.0025, {NAME})") == [0.5]
            assert PrometheusApi(url).query(f"{NAME}_bucket") == []
    finally:
        page.shutdown()
        page.server_close()
        thread.join(5)
