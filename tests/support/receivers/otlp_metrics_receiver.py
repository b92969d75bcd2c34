"""OTLP metrics receivers on free loopback ports, over gRPC and over HTTP, that keep what they were sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric


class MetricsReceiver:
    """What a server has received.

    Attributes:
        endpoint: URL for `OTEL_EXPORTER_OTLP_ENDPOINT`.
        headers: Headers of the newest request, in lower case.
    """

    def __init__(self) -> None:
        self.endpoint = ""
        self.headers: dict[str, str] = {}
        self._arrived = threading.Condition()
        self._requests: list[ExportMetricsServiceRequest] = []

    def take(self, request: ExportMetricsServiceRequest, headers: dict[str, str]) -> None:
        """Keep a request."""
        with self._arrived:
            self._requests.append(request)
            self.headers = headers
            self._arrived.notify_all()

    def wait(self, requests: int = 1, timeout_s: float = 20.0) -> bool:
        """Wait for a number of requests; False on a timeout."""
        with self._arrived:
            return self._arrived.wait_for(lambda: len(self._requests) >= requests, timeout_s)

    @property
    def count(self) -> int:
        """Requests so far."""
        with self._arrived:
            return len(self._requests)

    def metrics(self) -> dict[str, Metric]:
        """The newest version of each metric, by name."""
        return {metric.name: metric for metric in self._received()}

    def all(self, name: str) -> list[Metric]:
        """All versions of a metric, in the order in which they came."""
        return [metric for metric in self._received() if metric.name == name]

    def _received(self) -> list[Metric]:
        with self._arrived:
            return [
                metric
                for request in self._requests
                for resource in request.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
            ]

    def resource(self) -> dict[str, str]:
        """String attributes of the newest request's resource."""
        with self._arrived:
            attributes = self._requests[-1].resource_metrics[0].resource.attributes
            return {attribute.key: attribute.value.string_value for attribute in attributes}


@contextmanager
def grpc_receiver(port: int = 0) -> Iterator[MetricsReceiver]:
    """An OTLP server over gRPC."""
    receiver = MetricsReceiver()

    class Service(MetricsServiceServicer):
        def Export(
            self, request: ExportMetricsServiceRequest, context: grpc.ServicerContext
        ) -> ExportMetricsServiceResponse:
            receiver.take(request, {key: str(value) for key, value in context.invocation_metadata()})
            return ExportMetricsServiceResponse()

    with _grpc_server(port) as (server, endpoint):
        add_MetricsServiceServicer_to_server(Service(), server)
        server.start()
        receiver.endpoint = endpoint
        yield receiver


@contextmanager
def traces_only_receiver() -> Iterator[str]:
    """Endpoint of a gRPC server without a metrics service, as Jaeger's."""
    with _grpc_server(0) as (server, endpoint):
        server.start()
        yield endpoint


@contextmanager
def _grpc_server(port: int) -> Iterator[tuple[grpc.Server, str]]:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    try:
        yield server, f"http://127.0.0.1:{bound}"
    finally:
        server.stop(grace=None).wait()


@contextmanager
def http_receiver() -> Iterator[MetricsReceiver]:
    """An OTLP server over HTTP with protobuf bodies."""
    receiver = MetricsReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            found = self.path == "/v1/metrics"
            if found:
                headers = {key.lower(): value for key, value in self.headers.items()}
                receiver.take(ExportMetricsServiceRequest.FromString(body), headers)
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing, to keep the test's output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        receiver.endpoint = f"http://127.0.0.1:{server.server_port}"
        try:
            yield receiver
        finally:
            server.shutdown()
