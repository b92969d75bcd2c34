"""Where OTEL_CONFIG_FILE and the node's file send spans, metrics and events, with real receivers."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA as DELTA
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

from otel_torchdist.environment_variables import OTEL_CONFIG_FILE, OTEL_PYTHON_TORCHDIST_CONFIG
from otel_torchdist.node.job.description import JobDescription
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.export.outputs import Outputs, outputs_from_environment
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan
from tests.support.receivers.otlp_metrics_receiver import grpc_receiver, http_receiver
from tests.support.receivers.otlp_receiver import GRPC, HTTP, OtlpReceiver, ReceivedSpan

pytest.importorskip("opentelemetry.configuration")

SPAN = FinishedSpan("step (rank 0)", 1, 2, None, 100, 200, {"text": "abcdef", "one": 1})
KINDS = {GRPC: ("otlp_grpc", ""), HTTP: ("otlp_http", "/v1/traces")}


def declared(folder: Path, *sections: str, name: str = "otel.yaml") -> str:
    """Write a declarative configuration; return its path."""
    path = folder / name
    path.write_text("\n".join(['file_format: "1.0"', *sections]))
    path.chmod(0o644)
    return str(path)


def spans_to(receiver: OtlpReceiver, more: str = "", kind: str = "batch", **options: object) -> str:
    """The section of a configuration that exports spans to a receiver.

    Args:
        receiver: The receiver.
        more: Further keys of the tracer provider.
        kind: Kind of the processor.
        **options: Further keys of the exporter.
    """
    exporter, path = KINDS[receiver.protocol]
    keys = {"endpoint": f"{receiver.endpoint}{path}", **options}
    return f"tracer_provider: {{processors: [{{{kind}: {{exporter: {{{exporter}: {json.dumps(keys)}}}}}}}]{more}}}"


def sent(outputs: Outputs, receiver: OtlpReceiver) -> list[ReceivedSpan]:
    """Send a span, close all outputs, and return what has arrived."""
    outputs.sink.emit([SPAN])
    outputs.sink.shutdown(10)
    for close in outputs.closers:
        close()
    return receiver.spans()


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Warnings of ours; nobody else logs anything."""
    assert all((record.name, record.levelno) == ("otel_torchdist", logging.WARNING) for record in caplog.records)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
@pytest.mark.parametrize("kind", ["batch", "simple"])
@pytest.mark.parametrize("compression", ["gzip", "none", None])
def test_spans_go_where_the_file_says(
    protocol: str,
    kind: str,
    compression: str | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The exporter in OTEL_CONFIG_FILE gets the spans, and the variables for exporters have no say."""
    with OtlpReceiver(protocol) as receiver, OtlpReceiver() as other:
        section = spans_to(receiver, kind=kind, compression=compression, timeout=5000)
        monkeypatch.setenv(OTEL_CONFIG_FILE, declared(tmp_path, section))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", other.endpoint)
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "nonsense")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "nonsense")
        assert [span.name for span in sent(outputs_from_environment(), receiver)] == ["step (rank 0)"]
        assert not other.spans()
    assert not messages(caplog)


@pytest.mark.parametrize("protocol", [GRPC, HTTP])
def test_headers_and_references(protocol: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Headers are sent, and a token can come from a variable."""
    with grpc_receiver() if protocol == GRPC else http_receiver() as receiver:
        exporter, path = {GRPC: ("otlp_grpc", ""), HTTP: ("otlp_http", "/v1/metrics")}[protocol]
        headers = "headers: [{name: x-token, value: '${TOKEN:-none}'}], headers_list: 'x-a=1,x-b=2'"
        keys = f"{{endpoint: '{receiver.endpoint}{path}', {headers}, temporality_preference: delta}}"
        section = f"meter_provider: {{readers: [{{periodic: {{exporter: {{{exporter}: {keys}}}}}}}]}}"
        monkeypatch.setenv(OTEL_CONFIG_FILE, declared(tmp_path, section))
        monkeypatch.setenv("TOKEN", "moon-7")
        outputs = outputs_from_environment()
        assert outputs.meter_provider is not None
        outputs.meter_provider.get_meter("test").create_counter("seen").add(3)
        outputs.closers[0]()
        assert {"x-token": "moon-7", "x-a": "1", "x-b": "2"}.items() <= receiver.headers.items()
        assert receiver.metrics()["seen"].sum.aggregation_temporality == DELTA
    outputs.sink.shutdown(1)


def test_resource(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The file's attributes replace the variables' attributes; the job's attributes and the host's name are added."""
    resource = "resource: {attributes: [{name: service.name, value: llama}, {name: team, value: '${TEAM}'}]}"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=blue,site=here")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "other")
    monkeypatch.setenv("TEAM", "red")
    with OtlpReceiver() as receiver:
        monkeypatch.setenv(OTEL_CONFIG_FILE, declared(tmp_path, resource, spans_to(receiver)))
        [span] = sent(outputs_from_environment(job=JobDescription(slurm_job_id="7")), receiver)
    assert (span.resource["service.name"], span.resource["team"]) == ("llama", "red")
    assert "site" not in span.resource
    assert span.resource[semconv.SLURM_JOB_ID] == "7"
    assert {"host.name", "service.instance.id"} <= span.resource.keys()


def test_sampler_and_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sampler and limits come from the file, not from the variables."""
    more = ", sampler: {trace_id_ratio_based: {ratio: 0.25}}, limits: {attribute_count_limit: 1}"
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "2")
    with OtlpReceiver() as receiver:
        section = spans_to(receiver, more)
        limits = "attribute_limits: {attribute_value_length_limit: 3}"
        monkeypatch.setenv(OTEL_CONFIG_FILE, declared(tmp_path, section, limits))
        outputs = outputs_from_environment()
        [span] = sent(outputs, receiver)
    assert isinstance(outputs.sampler, TraceIdRatioBased)
    assert outputs.sampler.rate == 0.25
    assert span.attributes == {"text": "abc"}


def test_metrics_and_events(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A periodic reader pushes metrics, a reader for Prometheus is no second server, and a log exporter gets events."""
    with grpc_receiver() as receiver:
        exporter = f"{{exporter: {{otlp_grpc: {{endpoint: '{receiver.endpoint}'}}}}, interval: 60000}}"
        views = "views: [{selector: {instrument_name: seen}, stream: {name: renamed}}]"
        pull = "{pull: {exporter: {prometheus/development: {port: 9464}}}}"
        metrics = f"meter_provider: {{readers: [{{periodic: {exporter}}}, {pull}], {views}}}"
        traces = "tracer_provider: {processors: [{batch: {exporter: {otlp_grpc: {}}}}]}"
        logs = "logger_provider: {processors: [{batch: {exporter: {otlp_grpc: {}}}}]}"
        monkeypatch.setenv(OTEL_CONFIG_FILE, declared(tmp_path, metrics, traces, logs))
        monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
        outputs = outputs_from_environment()
        assert isinstance(outputs.meter_provider, MeterProvider)
        outputs.meter_provider.get_meter("test").create_counter("seen").add(3)
        assert outputs.serves_metrics
        assert len(outputs.closers) == 2
        outputs.closers[0]()
        assert set(receiver.metrics()) == {"renamed"}
        outputs.sink.shutdown(1)
        outputs.closers[1]()
    assert not messages(caplog)


def test_file_of_json_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Exporters of other packages are found by their names, as our own with the path of its file."""
    path = tmp_path / "spans.jsonl"
    section = f"tracer_provider: {{processors: [{{simple: {{exporter: {{torchdist_otlp_json: {{path: {path}}}}}}}}}]}}"
    monkeypatch.setenv(OTEL_CONFIG_FILE, declared(tmp_path, section))
    outputs = outputs_from_environment()
    outputs.sink.emit([SPAN])
    outputs.sink.shutdown(5)
    assert "step (rank 0)" in path.read_text()


def test_several_exporters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An exporter that cannot be built is one warning that names file and endpoint, and the others work."""
    with OtlpReceiver() as receiver:
        good = f"{{batch: {{exporter: {{otlp_grpc: {{endpoint: '{receiver.endpoint}'}}}}}}}}"
        bad = "{batch: {exporter: {otlp_grpc: {endpoint: 'https://me:secret@x:4317', tls: {ca_file: /none.pem}}}}}"
        json_encoding = "{batch: {exporter: {otlp_http: {encoding: json}}}}"
        unknown = "{simple: {exporter: {nowhere: {}}}}"
        section = f"tracer_provider: {{processors: [{bad}, {json_encoding}, {unknown}, {good}]}}"
        path = declared(tmp_path, section)
        monkeypatch.setenv(OTEL_CONFIG_FILE, path)
        assert len(sent(outputs_from_environment(), receiver)) == 1
    name = f"OTEL_CONFIG_FILE={path}: tracer_provider: "
    first, second, third = messages(caplog)
    assert first == (
        f"{name}otlp_grpc https://x:4317 cannot be built ([Errno 2] No such file or directory: '/none.pem'): "
        "no spans are sent there"
    )
    assert second.startswith(f"{name}otlp_http http://localhost:4318/v1/ cannot be built (encoding json is not")
    assert third.startswith(f"{name}nowhere cannot be built (Plugin 'nowhere' not found")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('file_format: "1.0"\ntracer_provider: [', "it is not YAML: "),
        ('file_format: "1.0"\ntracer_provider: {processor: []}', "Configuration does not match schema: "),
        ('file_format: "2.0"', "Unsupported file_format '2.0'"),
        ("tracer_provider: {processors: []}", "Configuration does not match schema: 'file_format' is a required"),
        (None, "it cannot be read (No such file or directory)"),
    ],
)
def test_unusable_file(
    content: str | None, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that cannot be used is one warning with the reason, in one line, and the variables decide."""
    path = tmp_path / "otel.yaml"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv(OTEL_CONFIG_FILE, str(path))
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        assert len(sent(outputs_from_environment(), receiver)) == 1
    [message] = messages(caplog)
    assert message.startswith(f"OTEL_CONFIG_FILE={path}: {reason}")
    assert message.endswith(": the OTEL_* variables decide where spans and metrics go")
    assert "\n" not in message


def test_missing_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without OpenTelemetry's package the warning says what to install, and the variables decide."""
    monkeypatch.setitem(sys.modules, "opentelemetry.configuration", None)
    path = declared(tmp_path)
    monkeypatch.setenv(OTEL_CONFIG_FILE, path)
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        assert len(sent(outputs_from_environment(), receiver)) == 1
    assert messages(caplog) == [
        f"OTEL_CONFIG_FILE={path}: it needs opentelemetry-configuration (pip install opentelemetry-configuration): "
        "the OTEL_* variables decide where spans and metrics go"
    ]


def test_other_version_of_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If another version of the package lacks a function, that is one warning, and the variables decide."""
    monkeypatch.delattr("opentelemetry.configuration._meter_provider._create_view")
    monkeypatch.setenv(OTEL_CONFIG_FILE, declared(tmp_path))
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        assert len(sent(outputs_from_environment(), receiver)) == 1
    [message] = messages(caplog)
    assert "has no attribute '_create_view': the OTEL_* variables decide" in message


def test_no_tracer_provider(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file without exporters of spans exports none, as the specification requires, and the log reports that."""
    path = declared(tmp_path)
    monkeypatch.setenv(OTEL_CONFIG_FILE, path)
    outputs = outputs_from_environment()
    assert not outputs.sampler.should_sample(None, 1, "step").decision.is_sampled()
    outputs.sink.shutdown(1)
    assert messages(caplog) == [f"OTEL_CONFIG_FILE={path} has no tracer_provider: no spans are exported"]


@pytest.mark.parametrize(
    ("variables", "is_of_node"),
    [
        ({}, True),
        ({"OTEL_SERVICE_NAME": "mine"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, False),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, False),
        ({OTEL_CONFIG_FILE: "job.yaml"}, False),
    ],
)
def test_nodes_file(
    variables: Mapping[str, str], is_of_node: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The node's file sends spans to its exporter, unless the job chooses an exporter of its own."""
    (tmp_path / "job.yaml").write_text('file_format: "1.0"')
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    resource = "resource: {attributes: [{name: service.name, value: site}, {name: cluster, value: c1}]}"
    with OtlpReceiver() as receiver:
        path = declared(tmp_path, resource, spans_to(receiver), name="node.yaml")
        monkeypatch.setenv(OTEL_PYTHON_TORCHDIST_CONFIG, path)
        outputs = outputs_from_environment()
        outputs.sink.emit([SPAN])
        outputs.sink.flush(10 if is_of_node else 0.1)
        outputs.sink.shutdown(0)
        names = [(span.resource["service.name"], span.resource["cluster"]) for span in receiver.spans()]
    assert names == ([(variables.get("OTEL_SERVICE_NAME", "site"), "c1")] if is_of_node else [])


def test_nodes_file_without_outputs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A node's file that only switches on needs no package of OpenTelemetry, and leaves outputs to the variables."""
    monkeypatch.setitem(sys.modules, "opentelemetry.configuration", None)
    section = "instrumentation/development: {python: {torch_distributed: {share: 0.1}}}"
    monkeypatch.setenv(OTEL_PYTHON_TORCHDIST_CONFIG, declared(tmp_path, section))
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        assert len(sent(outputs_from_environment(), receiver)) == 1
