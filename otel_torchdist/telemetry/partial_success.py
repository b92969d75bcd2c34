"""What a receiver refuses although it says "200": OTLP's partial success, which the SDK's exporters do not read.

A receiver may accept a request and refuse some of its spans (a quota, a limit on attributes, what is too old). They
are gone: the protocol forbids to send them again. The answer is read where it comes in: by a hook of `requests` over
HTTP, by a wrapper around the stub's call over gRPC. An exporter in which neither is found is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace.export import SpanExporter

from otel_torchdist import _guard

MAX_ANSWER_BYTES: Final = 65_536
"""Of a longer answer nothing is read: it is none of OTLP."""


class PartialSuccess:
    """Takes in the answers to one exporter's requests, on the thread that exports.

    Attributes:
        rejected: Spans that the receiver has refused since `forget`.
        message: What it has said about that, or as a warning without refusing any; '' for nothing.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        """Read the answers that come to `exporter` from now on."""
        self.rejected = 0
        self.message = ""
        with _guard.guard("reading what receivers refuse"):
            _follow_grpc(exporter, self._take)
            _follow_http(exporter, self._take)

    def forget(self) -> None:
        """Begin anew, before a request."""
        self.rejected, self.message = 0, ""

    def _take(self, answer: ExportTraceServiceResponse) -> None:
        self.rejected += max(answer.partial_success.rejected_spans, 0)
        self.message = answer.partial_success.error_message or self.message


Take = Callable[[ExportTraceServiceResponse], None]


def _follow_grpc(exporter: Any, take: Take) -> None:
    make_stub, stub = getattr(exporter, "_stub", None), getattr(exporter, "_client", None)
    if make_stub is None or not hasattr(stub, "Export"):
        return

    def followed(channel: Any) -> Any:  # when the connection is lost, the exporter makes another stub
        return _read_by(take, make_stub(channel))

    exporter._stub = followed
    exporter._client = _read_by(take, stub)


def _read_by(take: Take, stub: Any) -> Any:
    export = stub.Export

    def export_and_read(*args: Any, **kwargs: Any) -> Any:
        answer = export(*args, **kwargs)
        with _guard.guard("reading what receivers refuse"):
            if isinstance(answer, ExportTraceServiceResponse):
                take(answer)
        return answer

    stub.Export = export_and_read
    return stub


def _follow_http(exporter: Any, take: Take) -> None:
    transport = getattr(getattr(exporter, "_client", None), "_transport", exporter)  # the exporter itself up to 1.44
    hooks: dict[str, list[object]] = getattr(getattr(transport, "_session", None), "hooks", {})
    if "response" not in hooks:
        return

    def read(response: Any, *args: Any, **kwargs: Any) -> None:
        with _guard.guard("reading what receivers refuse"):
            if response.status_code == 200 and "protobuf" in response.headers.get("Content-Type", ""):
                _parse(response.content, take)

    hooks["response"].append(read)


def _parse(content: bytes, take: Take) -> None:
    if not content or len(content) > MAX_ANSWER_BYTES:
        return
    try:
        take(ExportTraceServiceResponse.FromString(content))
    except DecodeError:
        return
