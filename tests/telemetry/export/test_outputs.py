"""What OpenTelemetry's environment variables ask for."""

from __future__ import annotations

import ipaddress
import logging
import os
import random
import subprocess
import sys
import threading

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, ParentBasedTraceIdRatio, Sampler, TraceIdRatioBased

from otel_torchdist.model.reports.incident import LinkTarget
from otel_torchdist.telemetry.export.environment import (
    environment_links,
    environment_resource,
    environment_sampler,
    environment_sink,
)
from otel_torchdist.telemetry.export.exporters import with_hint
from otel_torchdist.telemetry.export.outputs import outputs_from_environment
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan
from tests.support.receivers.otlp_receiver import GRPC, HTTP, OtlpReceiver

SPAN = FinishedSpan("step (rank 0)", 1, 2, None, 100, 200, {})


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"])
def test_otlp_is_the_default_and_the_protocol_is_obeyed(
    protocol: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without OTEL_TRACES_EXPORTER spans go to OTEL_EXPORTER_OTLP_ENDPOINT over the protocol that is set."""
    with OtlpReceiver(protocol) as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        monkeypatch.setenv(variable, protocol)
        sink = environment_sink(Resource({"service.name": "test"}))
        sink.emit([SPAN])
        sink.shutdown(10)
        assert [span.name for span in receiver.spans()] == ["step (rank 0)"]
    assert sink.dropped == 0


def test_several_exporters_each_get_everything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """An exporter that cannot be built is a warning that names it, and does not disable the others."""
    with OtlpReceiver(GRPC) as receiver:
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "nowhere, otlp,otlp")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        sink = environment_sink(Resource({"service.name": "test"}))
        sink.emit([SPAN], urgent=True)
        sink.shutdown(10)
        assert len(receiver.spans()) == 1
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("OTEL_TRACES_EXPORTER=nowhere: the exporter cannot be created (")


def test_none_exports_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """`none` is neither an error nor an exporter."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    sink = environment_sink(Resource({}))
    sink.emit([SPAN])
    assert sink.flush(1)
    sink.shutdown(1)
    assert (sink.dropped, caplog.records) == (0, [])


def test_no_step_is_sampled_without_an_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a destination no spans are built, so that reading for metrics alone costs less."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    outputs = outputs_from_environment(Resource({}))
    assert not outputs.sampler.should_sample(None, 1, "step").decision.is_sampled()
    outputs.sink.shutdown(1)


def test_an_exporter_that_its_own_settings_break_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The exporter reads its variables itself; a value that it cannot read does not stop the training."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
    sink = environment_sink(Resource({}))
    sink.emit([SPAN])
    sink.shutdown(1)
    [record] = caplog.records
    assert "soon" in record.getMessage()


def test_an_unknown_protocol_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The warning names the setting, the bad value and what is used instead."""
    with OtlpReceiver(GRPC) as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
        sink = environment_sink(Resource({}))
        sink.emit([SPAN])
        sink.shutdown(10)
        assert len(receiver.spans()) == 1
    [record] = caplog.records
    assert record.getMessage() == "OTEL_EXPORTER_OTLP_PROTOCOL='http/json' is not grpc or http/protobuf: using grpc"


@pytest.mark.parametrize(
    ("name", "argument", "description"),
    [
        ("", "", DEFAULT_ON.get_description()),
        ("always_off", "", "AlwaysOffSampler"),
        ("TraceIdRatio", "0.25", TraceIdRatioBased(0.25).get_description()),
        ("parentbased_traceidratio", "", ParentBasedTraceIdRatio(1.0).get_description()),
    ],
)
def test_the_sampler_of_the_environment(
    name: str, argument: str, description: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """OTEL_TRACES_SAMPLER and its argument mean what they mean in the SDK."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", name)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    sampler = environment_sampler()
    assert isinstance(sampler, Sampler)
    assert sampler.get_description() == description
    assert caplog.records == []


@pytest.mark.parametrize(
    ("name", "argument", "ending"),
    [
        ("sometimes", "", "using parentbased_always_on"),
        ("traceidratio", "half", "OTEL_TRACES_SAMPLER_ARG=half is not a number from 0 to 1: using 1.0"),
        ("traceidratio", "1.5", "OTEL_TRACES_SAMPLER_ARG=1.5 is not a number from 0 to 1: using 1.0"),
        ("traceidratio", "nan", "OTEL_TRACES_SAMPLER_ARG=nan is not a number from 0 to 1: using 1.0"),
    ],
)
def test_a_sampler_that_cannot_be_built_is_one_warning(
    name: str, argument: str, ending: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The default is used instead, and the warning says so."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", name)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    sampler = environment_sampler()
    assert sampler.should_sample(None, 2**128 - 1, "step").decision.is_sampled()
    [record] = caplog.records
    assert record.getMessage().endswith(ending)


def test_traceparent_becomes_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher's W3C trace context becomes a link; anything else does not."""
    trace_id, span_id = random.getrandbits(128) | 1, random.getrandbits(64) | 1
    monkeypatch.setenv("TRACEPARENT", f"00-{trace_id:032x}-{span_id:016x}-00")
    assert environment_links() == (LinkTarget(trace_id, span_id),)
    for wrong in ("", "hello", f"00-{0:032x}-{span_id:016x}-01"):
        monkeypatch.setenv("TRACEPARENT", wrong)
        assert environment_links() == ()


def test_the_resource_is_what_the_user_configures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Service and host have defaults that give way to OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES."""
    attributes = environment_resource().attributes
    assert attributes["service.name"] == "torch.distributed"
    assert attributes["host.name"] == os.uname().nodename
    assert attributes["service.instance.id"] == f"{os.uname().nodename}:{os.getpid()}"
    assert ipaddress.ip_address(str(attributes["ip"]))
    assert attributes["telemetry.sdk.name"] == "opentelemetry"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "llm")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "host.name=node-7,team=blue,service.instance.id=a1")
    attributes = environment_resource().attributes
    assert (attributes["service.name"], attributes["host.name"], attributes["team"]) == ("llm", "node-7", "blue")
    assert attributes["service.instance.id"] == "a1"


FORKING = """
import os, time
from opentelemetry.sdk.resources import Resource
from otel_torchdist.telemetry.export.environment import environment_sink
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan

sink = environment_sink(Resource({}))
for number in range(1, 201):
    sink.emit([FinishedSpan("step (rank 0)", 1, number, None, 100, 200, {})])
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
sink.shutdown(20)
assert sink.dropped == 0
assert "GRPC_ENABLE_FORK_SUPPORT" not in os.environ
"""


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_a_process_that_exports_can_fork_in_peace(protocol: str) -> None:
    """DataLoader workers are forked during an export: no line on stderr, no dead child, nothing lost."""
    with OtlpReceiver(protocol) as receiver:
        environment = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        }
        # Python 3.12 warns of every fork of a process that has threads.
        program = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING]
        done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert sorted(span.span_id for span in receiver.spans()) == list(range(1, 201))


def test_hints() -> None:
    """Known signs have advice; otherwise no hint is guessed, and no full stop is doubled.

    The real Collector's error messages are in the tests of the stack; these have the same form.
    """
    assert with_hint("the moon is full.. ") == "the moon is full"
    assert with_hint("failed: Connection refused.") == "failed: Connection refused (no process listens there)"
    told = "Failed to export traces, error code: StatusCode.UNAVAILABLE"
    assert with_hint(told) == f"{told} (no process listens there, or that port speaks HTTP or requires TLS)"
    assert with_hint(f"{told}, error details: closed for today") == f"{told}, error details: closed for today"


@pytest.mark.parametrize(
    ("endpoint", "shown"),
    [
        ("http://user:secret@host:4317", "OTEL_EXPORTER_OTLP_ENDPOINT=http://host:4317"),
        ("host:4317", "OTEL_EXPORTER_OTLP_ENDPOINT=host:4317"),
        ("", "no OTEL_EXPORTER_OTLP_ENDPOINT"),
    ],
)
def test_endpoint_is_named_without_its_password(endpoint: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning names the endpoint, without its password, because anyone may read it."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    sink = environment_sink(environment_resource())
    try:
        names = [thread.name for thread in threading.enumerate()]
        assert f"otel-torchdist OTEL_TRACES_EXPORTER=otlp, {shown}" in names
    finally:
        sink.shutdown(1)
