"""Metrics pushed to the exporters that the environment asks for."""

import contextlib
import copy
import dataclasses
import logging
import os
import random
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource

from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.export.providers import build_meter_provider_from_environment
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.metrics.otel import OTelMetrics
from tests.support.receivers.otlp_metrics_receiver import (
    MetricsReceiver,
    grpc_receiver,
    http_receiver,
    traces_only_receiver,
)
from tests.support.receivers.refusing import refusing_port
from tests.support.tapes.fake_tape import RUN, WORLD, FakeTape
from tests.support.waiting import core_waits_s, until, waited_for_a_core_s

RESOURCE = Resource({"service.name": "training"})


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Callable[..., MeterProvider | None]:
    """Builds a provider under environment variables; the test shuts it down."""

    def build(**environment: str) -> MeterProvider | None:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return build_meter_provider_from_environment(RESOURCE)

    return build


@contextmanager
def shown(node: NodeMetrics, provider: MeterProvider | None) -> Iterator[MeterProvider]:
    """Attach a node to a provider, and shut the provider down while its receiver is still there."""
    assert provider is not None
    metrics = OTelMetrics(node, provider)
    try:
        yield provider
    finally:
        provider.shutdown(timeout_millis=150_000)
        metrics.stop()


@pytest.fixture
def node(tmp_path: Path) -> NodeMetrics:
    """A node with one rank that is in a collective."""
    metrics = NodeMetrics()
    rank = FakeTape(tmp_path, rank=2)
    rank.begin(at=time.monotonic_ns())
    metrics.track(rank.reader).consume(rank.reader.poll(), rank.reader.status(), 0)
    return metrics


@pytest.mark.parametrize("names", [None, "", "none", " None ", "prometheus", "none,prometheus", ","])
def test_nothing_to_push(build: Callable[..., MeterProvider | None], names: str | None) -> None:
    """Unset is not `otlp`: most endpoints for traces accept no metrics. Prometheus is served without a provider."""
    named = {} if names is None else {"OTEL_METRICS_EXPORTER": names}
    assert build(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:4317", **named) is None


@pytest.mark.parametrize("name", ["nonsense", "otlp_proto_carrier_pigeon"])
def test_unknown_exporter(
    build: Callable[..., MeterProvider | None], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """An exporter that is not installed is one warning, and the others work."""
    provider = build(OTEL_METRICS_EXPORTER=f"{name},console")
    assert provider is not None
    provider.shutdown()
    (record,) = caplog.records
    assert f"OTEL_METRICS_EXPORTER={name}:" in record.getMessage()
    assert "no metrics are pushed there" in record.getMessage()


def test_exporter_that_cannot_be_built(
    build: Callable[..., MeterProvider | None], caplog: pytest.LogCaptureFixture
) -> None:
    """A setting that an exporter refuses is one warning, not an error in the user's training."""
    assert build(OTEL_METRICS_EXPORTER="otlp", OTEL_EXPORTER_OTLP_METRICS_TIMEOUT="soon") is None
    (record,) = caplog.records
    assert "OTEL_METRICS_EXPORTER=otlp" in record.getMessage()
    assert "soon" in record.getMessage()


CONSOLE = """
from otel_torchdist.telemetry.export.providers import build_meter_provider_from_environment
from otel_torchdist.telemetry.metrics.otel import OTelMetrics
from otel_torchdist.telemetry.metrics.node import NodeMetrics
provider = build_meter_provider_from_environment()
OTelMetrics(NodeMetrics(), provider)
provider.shutdown()
"""


def test_console() -> None:
    """The SDK's own exporters work by their names; shutting down pushes what is there, and the process ends."""
    ran = subprocess.run(
        [sys.executable, "-c", CONSOLE],
        env={**os.environ, "OTEL_METRICS_EXPORTER": "console"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "torchdist.spans.dropped" in ran.stdout
    assert ran.stderr == ""
    assert ran.returncode == 0


@pytest.mark.parametrize(
    ("protocol", "receiver"),
    [("", grpc_receiver), ("grpc", grpc_receiver), ("http/protobuf", http_receiver)],
)
def test_push(
    build: Callable[..., MeterProvider | None],
    node: NodeMetrics,
    protocol: str,
    receiver: Callable[[], AbstractContextManager[MetricsReceiver]],
) -> None:
    """Metrics reach a real receiver over each protocol, at the interval, with headers and resource."""
    with receiver() as server:
        provider = build(
            OTEL_METRICS_EXPORTER="otlp,prometheus",
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
            OTEL_EXPORTER_OTLP_ENDPOINT=server.endpoint,
            OTEL_EXPORTER_OTLP_HEADERS="x-token=secret",
            OTEL_METRIC_EXPORT_INTERVAL="100",
        )
        with shown(node, provider):
            assert server.wait(requests=2)
        metrics = server.metrics()
        assert server.headers["x-token"] == "secret"
        assert server.resource()["service.name"] == "training"
    (point,) = metrics["torchdist.operations.in_flight"].sum.data_points
    attributes = {each.key: each.value.string_value or each.value.int_value for each in point.attributes}
    assert attributes == {
        semconv.RUN: RUN,
        semconv.RANK: 2,
        semconv.GROUP_HASH: WORLD.key,
        semconv.OPERATION: "all_reduce",
    }
    assert point.as_int == 1
    assert metrics["torchdist.operation.oldest_age"].gauge.data_points[0].as_double > 0


def test_shutdown_pushes_the_rest(build: Callable[..., MeterProvider | None], node: NodeMetrics) -> None:
    """Data since the last interval is not lost at the end."""
    with grpc_receiver() as server:
        with shown(node, build(OTEL_METRICS_EXPORTER="otlp", OTEL_EXPORTER_OTLP_ENDPOINT=server.endpoint)):
            assert server.count == 0
        assert server.count == 1


def test_large_snapshots_are_sent_in_parts(build: Callable[..., MeterProvider | None], tmp_path: Path) -> None:
    """A node with very many series stays below gRPC's limit of 4 MB, and all of it arrives."""
    rank = FakeTape(tmp_path, capacity=2048)
    for other in range(1, 129):
        for operation in ("all_reduce", "barrier"):
            rank.run(operation, dataclasses.replace(WORLD, ranks=(0, other)))
    batch = rank.reader.poll()
    metrics = NodeMetrics()
    for number in range(8):
        reader = copy.copy(rank.reader)
        reader.identity = dataclasses.replace(reader.identity, rank=number, nonce=number + 1)
        metrics.track(reader).consume(batch, rank.reader.status(), 0)
    with grpc_receiver() as server:
        provider = build(
            OTEL_METRICS_EXPORTER="otlp",
            OTEL_EXPORTER_OTLP_ENDPOINT=server.endpoint,
            OTEL_METRIC_EXPORT_INTERVAL="60000",  # a busy machine takes more than the usual 10 s for so much
            OTEL_EXPORTER_OTLP_TIMEOUT="60",
        )
        with shown(metrics, provider):
            pass
        assert server.count > 1
        points = [point for metric in server.all("torchdist.operations") for point in metric.sum.data_points]
        assert len(points) == 8 * 256


def test_invalid_protocol(
    build: Callable[..., MeterProvider | None], node: NodeMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning names the variable, the value, and what is used instead; then that is used."""
    with grpc_receiver() as server:
        provider = build(
            OTEL_METRICS_EXPORTER="otlp",
            OTEL_EXPORTER_OTLP_METRICS_PROTOCOL="smoke",
            OTEL_EXPORTER_OTLP_ENDPOINT=server.endpoint,
        )
        with shown(node, provider):
            pass
        assert server.count == 1
    (record,) = caplog.records
    assert record.getMessage() == (
        "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL='smoke' is not grpc or http/protobuf: using grpc"
    )


def test_traces_only_endpoint_is_one_warning(
    build: Callable[..., MeterProvider | None], node: NodeMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    """An endpoint that does not support metrics is reported once with its reason, however often it is tried."""
    with traces_only_receiver() as endpoint:
        provider = build(OTEL_METRICS_EXPORTER="otlp", OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
        with shown(node, provider) as provider:
            for _ in range(3):
                provider.force_flush()
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "metrics cannot be exported (OTEL_METRICS_EXPORTER=otlp)" in record.getMessage()
    assert "UNIMPLEMENTED" in record.getMessage()


def test_endpoint_that_comes_back(
    build: Callable[..., MeterProvider | None], node: NodeMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    """A dead endpoint is one warning with its reason, its recovery one line, and neither moves `random`."""
    caplog.set_level(logging.INFO, logger="otel_torchdist")
    random.seed(1)
    state = random.getstate()
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(refusing_port())
        provider = build(
            OTEL_METRICS_EXPORTER="otlp",
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}",
            OTEL_EXPORTER_OTLP_TIMEOUT="3",
        )
        assert provider is not None
        metrics = OTelMetrics(node, provider)
        for _ in range(2):
            provider.force_flush()
        server = stack.enter_context(grpc_receiver(port))
        deadline = time.monotonic() + 30  # gRPC itself pauses before it connects again
        while not server.count and time.monotonic() < deadline:
            provider.force_flush()
        assert server.count
        provider.shutdown()
    metrics.stop()
    assert random.getstate() == state
    messages = [record.getMessage() for record in caplog.records if record.name == "otel_torchdist"]
    assert len(messages) == 2
    assert messages[0].startswith("metrics cannot be exported (OTEL_METRICS_EXPORTER=otlp)")
    assert "UNAVAILABLE" in messages[0]
    assert messages[1] == "metrics are exported again (OTEL_METRICS_EXPORTER=otlp)"


def test_dead_endpoint_does_not_delay_the_end(
    build: Callable[..., MeterProvider | None], node: NodeMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    """Shutting down takes no longer than its timeout, and states why the rest was not sent."""
    with refusing_port() as port:
        provider = build(OTEL_METRICS_EXPORTER="otlp", OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}")
        assert provider is not None
        metrics = OTelMetrics(node, provider)
        began, before = time.monotonic(), core_waits_s()
        provider.shutdown(timeout_millis=1_500)
        assert time.monotonic() - began < 3 + waited_for_a_core_s(since=before)
        metrics.stop()
        # The pushing thread is told to give up and logs that a moment later.
        until(lambda: "UNAVAILABLE" in caplog.text)


def test_forked_child_pushes_nothing(build: Callable[..., MeterProvider | None], node: NodeMetrics) -> None:
    """In a DataLoader worker no thread of the provider runs, and so nothing is sent twice."""
    with http_receiver() as server:
        provider = build(
            OTEL_METRICS_EXPORTER="otlp",
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            OTEL_EXPORTER_OTLP_ENDPOINT=server.endpoint,
        )
        with shown(node, provider), warnings.catch_warnings():
            # Python 3.12 and later warn of a fork with threads, which is what DataLoader does.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
            if child == 0:
                os._exit(len(threading.enumerate()) - 1)
            assert os.waitpid(child, 0)[1] == 0
