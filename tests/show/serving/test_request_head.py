"""The head of a request, its first line and headers, is bounded: any number of clients takes little memory."""

from __future__ import annotations

import contextlib
import socket
import tracemalloc
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge

from otel_torchdist.agent.exchange.peers import ExchangeApp
from otel_torchdist.show.serving.clients import MAX_HEAD
from otel_torchdist.show.serving.http_server import HttpServer
from otel_torchdist.show.serving.metrics_page import MetricsServer
from tests.support.waiting import until

CLIENTS = 24
LINES = 64
"""Header lines of 32 KiB that each client sends, below the limits of `http.server`."""


@contextlib.contextmanager
def serves_metrics() -> Iterator[int]:
    """Serve a page with one gauge."""
    registry = CollectorRegistry()
    Gauge("answer", "Of everything.", registry=registry).set(42)
    server = MetricsServer("127.0.0.1", 0, registry)
    assert server.start() and server.port is not None
    yield server.port
    server.stop()


@contextlib.contextmanager
def serves_agents() -> Iterator[int]:
    """Answer other agents."""
    server = HttpServer("127.0.0.1", [0], "exchange")
    server.serve(ExchangeApp("instance"))
    yield server.port
    server.stop()


SERVERS = {"metrics": serves_metrics, "exchange": serves_agents}


@pytest.fixture(params=SERVERS)
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of a server."""
    with SERVERS[request.param]() as port:
        yield port


def answer_to(port: int, content: bytes) -> bytes:
    """The whole answer to a request, or as much of one as the server wants to read."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.sendall(content)
        answer = b""
        while portion := client.recv(65_536):
            answer += portion
        return answer


def head(size: int, line: bytes = b"GET /metrics HTTP/1.1\r\n") -> bytes:
    """A whole head of this size, in header lines of a KiB at most."""
    found, rest = line, size - len(line) - len(b"\r\n")
    while rest > 0:
        taken = rest if rest < 2_000 else 1_000
        found += b"X-Padding: ".ljust(taken - 2, b"a") + b"\r\n"
        rest -= taken
    return found + b"\r\n"


@pytest.mark.parametrize(
    "content",
    [
        head(MAX_HEAD + 1),
        b"GET /" + b"a" * MAX_HEAD + b" HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + (b"X: " + b"a" * 60_000 + b"\r\n") * 98,
        b"POST /v1/state HTTP/1.1\r\nContent-Length: 1\r\nX: " + b"a" * (200 << 10),
        b"a" * (900 << 10),
    ],
    ids=["a byte too much", "address", "98 headers", "a header without end", "a line without end"],
)
def test_a_large_head_is_refused(port: int, content: bytes) -> None:
    """A head of more than 16 KiB is answered with 431 as soon as it is that large, also where it never ends."""
    answer = answer_to(port, content)
    assert answer.startswith(b"HTTP/1.0 431 "), answer[:200]
    assert f"the head of a request is larger than {MAX_HEAD} bytes".encode() in answer


def test_a_head_of_the_largest_size_is_served() -> None:
    """One of exactly 16 KiB is answered as any other."""
    content = head(MAX_HEAD)
    assert len(content) == MAX_HEAD
    with serves_metrics() as port:
        assert b"answer 42.0" in answer_to(port, content)


def test_a_body_does_not_count() -> None:
    """A request with a body larger than a head may be reaches the application, which knows nothing of its run."""
    body = b"a" * (2 * MAX_HEAD)
    content = head(1_000, b"POST /v1/state HTTP/1.1\r\nContent-Length: %d\r\n" % len(body)) + body
    with serves_agents() as port:
        assert answer_to(port, content).startswith(b"HTTP/1.0 403 ")


def test_memory_of_many_clients(port: int) -> None:
    """Clients that send 2 MiB of headers each, and never end, take less than 64 KiB each at any time."""
    content = b"GET /metrics HTTP/1.1\r\n" + (b"X: " + b"a" * (32 << 10) + b"\r\n") * LINES
    tracemalloc.start()  # it does not see what was there before
    try:
        clients = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(CLIENTS)]
        for client in clients:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                client.sendall(content)
        until(lambda: all(client.recv(1, socket.MSG_PEEK) == b"H" for client in clients))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    for client in clients:
        client.close()
    assert peak < CLIENTS * (64 << 10)
