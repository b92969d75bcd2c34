"""A real OTLP receiver for spans in this process, on a free loopback port, over gRPC or HTTP."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, Status

GRPC = "grpc"
HTTP = "http/protobuf"


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it came over the wire.

    Attributes:
        trace_id: 128 bits.
        span_id: 64 bits.
        parent_id: 0 for a root.
        error: Description of the error status; None when the status is not an error.
        links: Trace id and span id of each.
        resource: Attributes of the resource.
        scope: Name, version and schema URL of the instrumentation scope.
    """

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    error: str | None
    links: tuple[tuple[int, int], ...]
    resource: dict[str, Any]
    scope: tuple[str, str, str]


class OtlpReceiver:
    """Accepts spans from `start` to `stop`; also a context manager.

    Attributes:
        protocol: `grpc` or `http/protobuf`, as in OTEL_EXPORTER_OTLP_PROTOCOL.
        port: The port; the same again after another `start`.
        delay_s: How long each answer takes.
        host: Where it listens.
        refused: Number of spans of each request that it reports as rejected.
        message: Its message about rejected spans.
    """

    def __init__(self, protocol: str = GRPC, port: int = 0, delay_s: float = 0.0, host: str = "127.0.0.1") -> None:
        self.protocol = protocol
        self.host = host
        self.port = port
        self.delay_s = delay_s
        self.refused = 0
        self.message = ""
        self._lock = threading.Lock()
        self._spans: list[ReceivedSpan] = []
        self._requests = 0
        self._largest = 0
        self._stop: Callable[[], None] | None = None
        self._reserved: socket.socket | None = None

    @property
    def endpoint(self) -> str:
        """Value for OTEL_EXPORTER_OTLP_ENDPOINT."""
        return f"http://{self.host}:{self.port}"

    @property
    def requests(self) -> int:
        """Requests received so far; the last ones need not have been answered yet."""
        with self._lock:
            return self._requests

    @property
    def largest(self) -> int:
        """Bytes of the largest request so far, before compression."""
        with self._lock:
            return self._largest

    def spans(self) -> list[ReceivedSpan]:
        """All spans received so far, in order."""
        with self._lock:
            return list(self._spans)

    def wait_for(
        self,
        condition: Callable[[list[ReceivedSpan]], bool],
        timeout_s: float = 20.0,
        log: Callable[[], str] | None = None,
    ) -> list[ReceivedSpan]:
        """Return the spans as soon as they meet a condition; fail, with the log, if they do not in time."""
        deadline = time.monotonic() + timeout_s
        while not condition(self.spans()):
            if time.monotonic() >= deadline:
                names = [span.name for span in self.spans()]
                raise AssertionError(f"after {timeout_s} s only: {names}" + (f"\n{log()}" if log else ""))
            time.sleep(0.01)
        return self.spans()

    def __enter__(self) -> OtlpReceiver:
        """Start."""
        return self.start()

    def __exit__(self, *error: object) -> None:
        """Stop."""
        self.stop()

    def start(self) -> OtlpReceiver:
        """Listen."""
        assert self._stop is None
        self._stop = self._start_grpc() if self.protocol == GRPC else self._start_http()
        self._release()
        return self

    def stop(self) -> None:
        """Stop listening, and refuse connections from now on."""
        self._release()
        if self._stop is not None:
            self._stop()
        self._stop = None

    def pause(self) -> None:
        """Refuse connections until `start`, and let no other program have the port meanwhile."""
        self.stop()
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # servers set that too
        self._reserved.bind((self.host, self.port))
        self.port = self._reserved.getsockname()[1]

    def _release(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
        self._reserved = None

    def _start_grpc(self) -> Callable[[], None]:
        receiver = self

        class Servicer(trace_service_pb2_grpc.TraceServiceServicer):
            def Export(self, request: ExportTraceServiceRequest, context: grpc.ServicerContext) -> Any:
                receiver._take(request)
                return receiver._answer()

        server = grpc.server(ThreadPoolExecutor(max_workers=4), options=[("grpc.so_reuseport", 0)])
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Servicer(), server)
        self.port = server.add_insecure_port(f"{self.host}:{self.port}")
        server.start()

        def stop() -> None:
            server.stop(grace=0.2).wait(5)

        return stop

    def _start_http(self) -> Callable[[], None]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path == "/v1/traces":
                    receiver._take(ExportTraceServiceRequest.FromString(body))
                answer = receiver._answer().SerializeToString()
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer((self.host, self.port), Handler)
        server.daemon_threads = True
        self.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join(5)

        return stop

    def _answer(self) -> ExportTraceServiceResponse:
        answer = ExportTraceServiceResponse()
        if self.refused or self.message:
            answer.partial_success.rejected_spans = self.refused
            answer.partial_success.error_message = self.message
        return answer

    def _take(self, request: ExportTraceServiceRequest) -> None:
        with self._lock:
            self._requests += 1
            self._largest = max(self._largest, request.ByteSize())
        time.sleep(self.delay_s)
        received = [
            _received(span, _attributes(resource_spans.resource.attributes), _scope(scope_spans))
            for resource_spans in request.resource_spans
            for scope_spans in resource_spans.scope_spans
            for span in scope_spans.spans
        ]
        with self._lock:
            self._spans += received


def _scope(spans: ScopeSpans) -> tuple[str, str, str]:
    return spans.scope.name, spans.scope.version, spans.schema_url


def _received(span: Span, resource: dict[str, Any], scope: tuple[str, str, str]) -> ReceivedSpan:
    number = int.from_bytes
    return ReceivedSpan(
        name=span.name,
        trace_id=number(span.trace_id, "big"),
        span_id=number(span.span_id, "big"),
        parent_id=number(span.parent_span_id, "big"),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        error=span.status.message if span.status.code == Status.STATUS_CODE_ERROR else None,
        links=tuple((number(link.trace_id, "big"), number(link.span_id, "big")) for link in span.links),
        resource=resource,
        scope=scope,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    pair: KeyValue
    for pair in pairs:
        attributes[pair.key] = _value(pair.value)
    return attributes


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
