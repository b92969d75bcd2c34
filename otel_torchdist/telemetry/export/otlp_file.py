"""Writes spans as OTLP JSON lines to a file, in the OTLP file format: one `ExportTraceServiceRequest` per line."""

from __future__ import annotations

import base64
import json
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_OTLP_FILE
from otel_torchdist.system.files.kept import KeptDescriptor

_IDS: Final = ("traceId", "spanId", "parentSpanId")

_logger = logging.getLogger(__name__)


class JsonFileExporter(SpanExporter):
    """An exporter that appends to a file. Several processes may append to the same file: each line is one write."""

    def __init__(self, path: Path) -> None:
        """Open `path`, and create missing directories.

        Raises:
            OSError: The file cannot be opened for writing.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = KeptDescriptor(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644))
        self._is_closed = False
        self._is_cut = False
        self._lock = threading.Lock()  # a shutdown after a timeout closes the file during an export

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write one line."""
        line = otlp_json(spans).encode() + b"\n"
        with self._lock:
            return self._write(line) if not self._is_closed else SpanExportResult.FAILURE

    def _write(self, line: bytes) -> SpanExportResult:
        try:
            # A full disk may have cut the last line short. Begin a new line, so that the two are not joined.
            written = os.write(self._file.fileno(), b"\n" + line if self._is_cut else line)
        except OSError as error:
            _logger.error("Failed to write spans to %s: %s", self._path, error)
            return SpanExportResult.FAILURE
        self._is_cut = written < len(line)
        if self._is_cut:
            _logger.error("Failed to write spans to %s: a line was only partly written", self._path)
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return True: no spans are held back."""
        return True

    def shutdown(self) -> None:
        """Close the file."""
        with self._lock:
            self._is_closed = True
            self._file.close()


def file_exporter(path: Path | str) -> SpanExporter:
    """Return an exporter that appends OTLP JSON lines to the file at `path`.

    Raises:
        OSError: The file cannot be opened for writing.
    """
    return JsonFileExporter(Path(path))


def exporter_from_environment(path: str = "") -> SpanExporter:
    """Return the exporter for OTEL_TRACES_EXPORTER=torchdist_otlp_json.

    Args:
        path: Path of the file in a declarative configuration; '' for the path in the environment.

    Raises:
        ValueError: The environment names no file, or the file cannot be written.
    """
    path = path or os.environ.get(OTEL_PYTHON_TORCHDIST_OTLP_FILE, "").strip()
    if not os.path.isabs(path):
        raise ValueError(f"{OTEL_PYTHON_TORCHDIST_OTLP_FILE}={path!r} is not an absolute path")
    try:
        return file_exporter(path)
    except OSError as error:
        raise ValueError(f"{OTEL_PYTHON_TORCHDIST_OTLP_FILE}={path!r}: {os.strerror(error.errno or 0)}") from error


def otlp_json(spans: Sequence[ReadableSpan]) -> str:
    """Encode an export request as OTLP JSON, with numeric enums, and hex ids instead of protobuf's base64."""
    request = MessageToDict(encode_spans(spans), use_integers_for_enums=True)
    for resource_spans in request.get("resourceSpans", ()):
        for scope_spans in resource_spans.get("scopeSpans", ()):
            for span in scope_spans.get("spans", ()):
                _write_ids_as_hex(span)
                for link in span.get("links", ()):
                    _write_ids_as_hex(link)
    return json.dumps(request, separators=(",", ":"))


def _write_ids_as_hex(fields: dict[str, Any]) -> None:
    for name in _IDS:
        if name in fields:
            fields[name] = base64.b64decode(fields[name]).hex()
