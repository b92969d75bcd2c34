"""Spans as OTLP JSON lines in a file."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_torchdist.model.reports.incident import LinkTarget
from otel_torchdist.telemetry.export.environment import environment_sink
from otel_torchdist.telemetry.export.exporter_sink import ExporterSink
from otel_torchdist.telemetry.export.exporters import readable_span
from otel_torchdist.telemetry.export.otlp_file import file_exporter
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan

RESOURCE = Resource({"service.name": "test"})
ANCHOR = FinishedSpan("step (rank 0)", 0xA1, 0xB2, None, 10**18, 10**18 + 1, {}, links=(LinkTarget(0xC3, 0xD4),))
CHILD = FinishedSpan(
    "all_reduce",
    0xA1,
    0xE5,
    0xB2,
    10**18,
    2**63,
    {"torchdist.message.size": 2**40, "torchdist.async": False, "torchdist.tensor.shapes": ["2x3"]},
    "it hangs",
)


def test_lines_are_what_the_otlp_json_encoding_demands(tmp_path: Path) -> None:
    """Ids are lowercase hex of full length, 64-bit numbers strings, enums numbers, keys in lower camel case."""
    path = tmp_path / "made" / "spans.jsonl"
    sink = ExporterSink(file_exporter(path), RESOURCE, "file")
    sink.emit([ANCHOR, CHILD])
    assert sink.flush(10)
    sink.emit([ANCHOR])
    sink.shutdown(10)

    lines = path.read_text().splitlines()
    assert len(lines) == 2
    [resource_spans] = json.loads(lines[0])["resourceSpans"]
    assert resource_spans["resource"]["attributes"] == [{"key": "service.name", "value": {"stringValue": "test"}}]
    [scope_spans] = resource_spans["scopeSpans"]
    assert scope_spans["scope"]["name"] == "otel_torchdist"
    anchor, child = scope_spans["spans"]
    assert anchor["traceId"] == f"{0xA1:032x}"
    assert anchor["links"][0]["traceId"] == f"{0xC3:032x}"
    assert anchor["links"][0]["spanId"] == f"{0xD4:016x}"
    assert "parentSpanId" not in anchor
    assert (child["spanId"], child["parentSpanId"]) == (f"{0xE5:016x}", f"{0xB2:016x}")
    assert (child["kind"], child["status"]) == (1, {"message": "it hangs", "code": 2})
    assert (child["startTimeUnixNano"], child["endTimeUnixNano"]) == (str(10**18), str(2**63))
    assert child["attributes"] == [
        {"key": "torchdist.message.size", "value": {"intValue": str(2**40)}},
        {"key": "torchdist.async", "value": {"boolValue": False}},
        {"key": "torchdist.tensor.shapes", "value": {"arrayValue": {"values": [{"stringValue": "2x3"}]}}},
    ]
    without_ids = json.dumps(_without_ids(json.loads(lines[0])))
    assert Parse(without_ids, ExportTraceServiceRequest()).resource_spans  # nothing that OTLP does not define


def _without_ids(value: object) -> object:
    """The request without ids: protobuf's own JSON would read hex as base64."""
    if isinstance(value, dict):
        return {key: _without_ids(item) for key, item in value.items() if not key.lower().endswith("id")}
    return [_without_ids(item) for item in value] if isinstance(value, list) else value


@pytest.mark.process
def test_several_processes_write_to_one_file(tmp_path: Path) -> None:
    """Lines of ranks that share a file are not interleaved."""
    path = tmp_path / "spans.jsonl"
    program = (
        "import sys\n"
        "from tests.telemetry.export.test_otlp_file import ANCHOR, CHILD, RESOURCE, file_exporter, readable_span\n"
        "exporter = file_exporter(sys.argv[1])\n"
        "spans = [readable_span(span, RESOURCE) for span in [ANCHOR] + [CHILD] * 200]\n"
        "for _ in range(30): exporter.export(spans)\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(path)]) for _ in range(2)]
    assert [writer.wait(170) for writer in writers] == [0, 0]
    lines = path.read_text().splitlines()
    assert len(lines) == 60
    assert {len(json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]) for line in lines} == {201}


def test_a_full_disk_fails_the_batch_and_spares_the_next(tmp_path: Path) -> None:
    """A line that did not fit is reported as failed, and later lines can still be read."""
    path = tmp_path / "spans.jsonl"
    exporter = file_exporter(path)
    spans = [readable_span(span, RESOURCE) for span in (ANCHOR, CHILD)]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        assert exporter.export(spans) is SpanExportResult.FAILURE
        assert exporter.export(spans) is SpanExportResult.FAILURE
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert exporter.export(spans) is SpanExportResult.SUCCESS
    exporter.shutdown()
    assert exporter.export(spans) is SpanExportResult.FAILURE
    assert json.loads(path.read_text().splitlines()[-1])


def test_a_path_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    """A file that cannot be written is reported before the training."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        file_exporter(tmp_path / "file" / "spans.jsonl")


def test_named_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OTEL_TRACES_EXPORTER=torchdist_otlp_json writes to the file that is named."""
    path = tmp_path / "spans.jsonl"
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "torchdist_otlp_json")
    monkeypatch.setenv("OTEL_PYTHON_TORCHDIST_OTLP_FILE", str(path))
    sink = environment_sink(Resource({}))
    sink.emit([FinishedSpan("step", 1, 2, None, 3, 4, {})])
    sink.shutdown(5.0)
    [line] = path.read_text().splitlines()
    assert json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["name"] == "step"


@pytest.mark.parametrize("path", ["", "relative.jsonl", "/dev/null/spans.jsonl"])
def test_bad_file_in_the_environment(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that cannot be used is one warning with its name; nothing is written anywhere."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "torchdist_otlp_json")
    monkeypatch.setenv("OTEL_PYTHON_TORCHDIST_OTLP_FILE", path)
    sink = environment_sink(Resource({}))
    sink.shutdown(5.0)
    [record] = caplog.records
    assert "OTEL_TRACES_EXPORTER=torchdist_otlp_json: the exporter cannot be created" in record.getMessage()
    assert path in record.getMessage()
