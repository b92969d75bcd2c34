"""A process that receives spans over OTLP/gRPC, decodes and counts them, as a local collector would."""

from __future__ import annotations

import multiprocessing
import signal
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

THREADS = 2


class SpanSink:
    """A context manager that runs the process.

    Attributes:
        endpoint: Address on which it listens.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs,), daemon=True)
        self.endpoint = ""

    def received(self) -> int:
        """Return the number of received spans."""
        self._connection.send(True)
        return self._connection.recv()

    def __enter__(self) -> SpanSink:
        """Start the process."""
        self._process.start()
        self.endpoint = f"http://127.0.0.1:{self._connection.recv()}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the process."""
        self._process.terminate()
        self._process.join()


class _Servicer(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.spans = 0

    def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:
        # A batch processor sends one request at a time, so the count needs no lock.
        self.spans += sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)
        return ExportTraceServiceResponse()


def _run(connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # `SpanSink` ends this process
    servicer = _Servicer()
    server = grpc.server(ThreadPoolExecutor(THREADS))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    connection.send(port)
    while connection.recv():
        connection.send(servicer.spans)
