"""Reads how many spans a receiver rejects in a request that it accepts: OTLP's partial success.

A receiver may have a quota, a limit on attributes, or refuse old spans. Rejected spans are lost, because the protocol
forbids sending them again. The SDK's exporters ignore these responses and have no interface to them. So an exporter is
built with a `requests` session that has a response hook, or with a gRPC stub that passes responses on. Both are public:
`session` is a parameter of the HTTP exporter, and the stub is a name in the gRPC exporter's module, which we replace as
we replace its encoder (`otlp`). An exporter with neither is built unchanged, and its rejections remain unknown.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, cast

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace.export import SpanExporter

from otel_torchdist import guard
from otel_torchdist.telemetry.export.exporters import load_entry_point

MAX_RESPONSE_BYTES: Final = 65_536
"""Upper bound on a response. A longer response is not OTLP, and is ignored."""

_STUB: Final = "TraceServiceStub"
_SESSION: Final = "session"
_PROVIDER_GROUP: Final = "opentelemetry_otlp_credential_provider"
_PROVIDER_VARIABLES: Final = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
)
"""The user's own session, by the name of an entry point. The first variable that is set counts, as in the exporter."""


class PartialSuccess:
    """A reader of the responses to one exporter's requests.

    Attributes:
        rejected: Number of spans rejected since the last `reading`.
        message: The receiver's reason, or its warning if it rejected none; '' for none.
    """

    def __init__(self) -> None:
        self.rejected = 0
        self.message = ""

    @contextmanager
    def reading(self) -> Generator[None, None, None]:
        """Return a context that resets the reader, and reads responses to requests of this thread."""
        self.rejected, self.message = 0, ""
        _current.reader = self
        try:
            yield
        finally:
            _current.reader = None

    def take(self, response: ExportTraceServiceResponse) -> None:
        """Read a response."""
        self.rejected += max(response.partial_success.rejected_spans, 0)
        self.message = response.partial_success.error_message or self.message


class _Current(threading.local):
    """The reader of the request that this thread sends; None for requests of others."""

    reader: PartialSuccess | None = None


_current: Final = _Current()


def build_reading(factory: Callable[..., SpanExporter], **options: Any) -> SpanExporter:
    """Build one of the SDK's OTLP exporters so that a `PartialSuccess` can read the responses to it."""
    _replace_stub(factory.__module__)
    if _SESSION in inspect.signature(factory).parameters:
        session = _reading_session()
        options |= {} if session is None else {_SESSION: session}
    return factory(**options)


def _replace_stub(module: str) -> None:
    names = vars(sys.modules[module])
    stub_class = names.get(_STUB)
    if not isinstance(stub_class, type):  # another transport, or replaced before
        return

    def reading_stub(channel: object) -> object:
        stub = stub_class(channel)
        export = cast("Callable[..., object]", stub.Export)

        def export_and_read(*args: object, **kwargs: object) -> object:
            response = export(*args, **kwargs)
            reader = _current.reader
            if reader is not None and isinstance(response, ExportTraceServiceResponse):
                with guard.guarded("reading rejections of receivers"):
                    reader.take(response)
            return response

        stub.Export = export_and_read
        return stub

    names[_STUB] = reading_stub


def _reading_session() -> object | None:
    """Return a session of `requests` with our hook; None to leave the session to the exporter."""
    try:
        import requests

        provider = next(filter(None, map(os.environ.get, _PROVIDER_VARIABLES)), None)
        loaded = load_entry_point(_PROVIDER_GROUP, provider) if provider is not None else requests.Session
        session = cast("Callable[[], object]", loaded)()
    except Exception:  # a failing provider: the exporter calls it too, and reports the reason
        return None
    if not isinstance(session, requests.Session):
        return None
    session.hooks["response"].append(_read)
    return session


def _read(response: Any, *_: object, **__: object) -> None:
    reader = _current.reader
    if reader is None:
        return
    with guard.guarded("reading rejections of receivers"):
        if response.status_code == 200 and "protobuf" in response.headers.get("Content-Type", ""):
            _parse(response.content, reader)


def _parse(content: bytes, reader: PartialSuccess) -> None:
    if not content or len(content) > MAX_RESPONSE_BYTES:
        return
    try:
        reader.take(ExportTraceServiceResponse.FromString(content))
    except DecodeError:
        return
