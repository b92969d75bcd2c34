"""Divergence to Jaeger: through the Collector, which keeps what Jaeger cannot accept, and directly."""

import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from deploy.native.jaeger_spans import JaegerSpan
from deploy.native.ports import HOST
from deploy.native.stack import Stack
from tests.servers.jobs import RANKS, running_job
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import environ_of
from tests.support.waiting import until

STEPS, PAUSE_S = 120, 0.08
FEW_STEPS = 20
AWAY_S = 4.0
DEADLINE_S = 40.0


@pytest.mark.thorough
def test_jaeger_killed_in_the_middle_loses_nothing(
    warm_python: WarmPython, stack: Stack, tapes: Path, tmp_path: Path
) -> None:
    """Spans go over HTTP to the Collector, which keeps them while Jaeger is down; each is there once afterwards."""
    service = "killed"

    def spans() -> list[JaegerSpan]:
        return [span for trace in stack.traces.find(service, limit=1500) for span in trace]

    def finished() -> int:
        return Counter(span.name for span in spans())["all_reduce"]

    environment = {
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_SERVICE_NAME": service,
        "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "0",
    }
    otlp = stack.addresses.otlp_http
    with running_job(warm_python, tmp_path, "steady.py", STEPS, PAUSE_S, otlp=otlp, tapes=tapes, **environment) as job:
        until(lambda: finished() > 0, DEADLINE_S)
        try:
            stack.jaeger.stop(signal.SIGKILL)
            time.sleep(AWAY_S)
        finally:
            stack.jaeger.start()
        assert job.wait(60) == 0, job.log
    until(lambda: finished() >= 2 * STEPS * RANKS, DEADLINE_S)
    assert finished() == 2 * STEPS * RANKS
    assert [id_ for id_, count in Counter(span.span_id for span in spans()).items() if count > 1] == []
    assert [span.warnings for span in spans() if span.warnings] == []


@pytest.mark.parametrize(
    ("protocol", "kernel"), [("grpc", "python"), pytest.param("http/protobuf", "native", marks=pytest.mark.thorough)]
)
def test_jaeger_without_a_collector(
    protocol: str, kernel: str, warm_python: WarmPython, stack: Stack, tapes: Path, tmp_path: Path
) -> None:
    """Jaeger accepts spans from agents directly, over both protocols, each once and without a warning."""
    service = f"direct-{protocol[:4]}"
    port = stack.ports.jaeger_otlp_grpc_port if protocol == "grpc" else stack.ports.jaeger_otlp_http_port
    environment = {
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_SERVICE_NAME": service,
        "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "0",
        **environ_of(kernel),
    }
    otlp = f"http://{HOST}:{port}"
    with running_job(warm_python, tmp_path, "steady.py", FEW_STEPS, 0.02, otlp=otlp, tapes=tapes, **environment) as job:
        assert job.wait(60) == 0, job.log

    def spans() -> list[JaegerSpan]:
        return [span for trace in stack.traces.find(service, limit=1500) for span in trace]

    def finished() -> int:
        return Counter(span.name for span in spans())["all_reduce"]

    until(lambda: finished() >= 2 * FEW_STEPS * RANKS, DEADLINE_S)
    assert finished() == 2 * FEW_STEPS * RANKS
    assert len({span.span_id for span in spans()}) == len(spans())
    assert [span.warnings for span in spans() if span.warnings] == []
