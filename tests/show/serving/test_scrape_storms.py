"""`/metrics` under clients that are many, slow, or never finish."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from otel_torchdist.show.serving.clients import MAX_CLIENTS, ScrapeClients
from otel_torchdist.show.serving.http_server import SharedPage
from otel_torchdist.show.serving.metrics_page import MetricsServer
from tests.show.serving.test_metrics_page import connected, get, our_threads, served_within
from tests.support.waiting import core_waits_s, until, waited_for_a_core_s

MAKING_S = 0.02
PROMISE_S = 1.0
"""Bound until others are answered, plus the time for which this process waits for a core."""


class Slow(Collector):
    """A page that takes a while.

    Attributes:
        begun: When each rendering began.
        at_once: Maximum number of concurrent renderings.
    """

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.at_once = 0
        self._running = 0

    def collect(self) -> Iterator[Metric]:
        """Count."""
        self.begun.append(time.monotonic())
        self._running += 1
        self.at_once = max(self.at_once, self._running)
        time.sleep(MAKING_S)
        self._running -= 1
        yield GaugeMetricFamily("answer", "Of everything.", len(self.begun))

    def describe(self) -> list[Metric]:
        """Nothing is collected when it is registered."""
        return []


@pytest.fixture
def page() -> Slow:
    """What is served."""
    return Slow()


@pytest.fixture
def server(page: Slow) -> Iterator[MetricsServer]:
    """A running server."""
    registry = CollectorRegistry()
    registry.register(page)
    server = MetricsServer("127.0.0.1", 0, registry)
    assert server.start()
    yield server
    server.stop()
    assert our_threads() == []


@pytest.fixture
def connect(server: MetricsServer) -> Iterator[Callable[..., socket.socket]]:
    """Connects a client that sends something and then nothing more."""
    with ExitStack() as stack:

        def connect(sent: bytes = b"", **options: Any) -> socket.socket:
            client = socket.create_connection(("127.0.0.1", server.port or 0), timeout=10, **options)
            stack.enter_context(client)
            client.sendall(sent)
            return client

        yield connect


def test_many_at_once(server: MetricsServer, page: Slow) -> None:
    """Hundreds of clients, as many at once as there is room for, share pages; none is older than its request."""

    def ask(_: int) -> tuple[float, int]:
        asked = time.monotonic()
        return asked, int(float(get(server.port).split("answer ")[-1]))

    with ThreadPoolExecutor(MAX_CLIENTS - 8) as pool:
        answers = list(pool.map(ask, range(400)))
    assert all(page.begun[number - 1] >= asked for asked, number in answers)
    assert len(page.begun) < len(answers)
    assert page.at_once == 1


def test_shared_only_by_the_same_question() -> None:
    """A client that asks for another format, or for a part, gets its own page."""
    asked: list[dict[str, str]] = []

    def app(environ: dict[str, str], start_response: Callable[..., object]) -> list[bytes]:
        asked.append(environ)
        start_response("200 OK", [("Content-Type", environ["HTTP_ACCEPT"])])
        return [environ["HTTP_ACCEPT"].encode()]

    shared = SharedPage(app)
    said: list[object] = []
    gate = threading.Barrier(8)

    def ask(accept: str) -> bytes:
        gate.wait(10)
        return b"".join(shared({"HTTP_ACCEPT": accept}, lambda *answer: said.append(answer)))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, ["text", "json"] * 4)) == [b"text", b"json"] * 4
    assert all(said.count(("200 OK", [("Content-Type", kind)])) == 4 for kind in ("text", "json"))


def answered_after_s(server: MetricsServer) -> float:
    """After how many seconds a question is answered, without those for which this process waits for a core.

    What threads that have ended meanwhile have waited for is not known, so that one long answer proves nothing.
    """
    began, before = time.monotonic(), core_waits_s()
    get(server.port)
    return time.monotonic() - began - waited_for_a_core_s(since=before)


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nX-Slow: "], ids=["half-open", "slow loris"])
def test_clients_that_never_send_a_request(
    server: MetricsServer, connect: Callable[..., socket.socket], sent: bytes
) -> None:
    """However many there are, others are answered within a second, and threads and descriptors stay bounded."""
    files = len(os.listdir("/proc/self/fd"))
    clients = [connect(sent) for _ in range(2 * MAX_CLIENTS)]
    for _ in range(5):
        assert min(answered_after_s(server), answered_after_s(server)) < PROMISE_S
        # Those that were sent away end as soon as they get a core.
        assert until(lambda: len(our_threads()) <= MAX_CLIENTS + 3)
        assert until(lambda: len(os.listdir("/proc/self/fd")) <= files + len(clients) + MAX_CLIENTS + 3)
        clients.append(connect(sent))
    assert clients[0].recv(1) == b"", "who came first was sent away first"


def test_clients_that_do_not_read() -> None:
    """Clients that ask and never read do not keep others out either."""
    registry = CollectorRegistry()
    many = Gauge("many", "Too much for the buffers of a connection.", ["number"], registry=registry)
    for number in range(4000):
        many.labels("x" * 2000 + str(number)).set(1)
    with served_within(registry, most_clients=4) as port, ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(connected(port)).sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert until(lambda: len(our_threads()) == 5)
        began, before = time.monotonic(), core_waits_s()
        assert "many{" in get(port)
        assert time.monotonic() - began < 5.0 + waited_for_a_core_s(since=before)


def test_client_that_has_been_dismissed_takes_its_place_until_it_leaves() -> None:
    """No thread more is started until its own has noticed; and what it had sent is not answered any more."""
    clients, gate, refused = ScrapeClients(most=1), threading.Event(), threading.Event()

    def serve() -> None:
        gate.wait(30)
        with contextlib.suppress(ConnectionAbortedError), clients.at_work():
            clients.unregister()
            return
        refused.set()
        clients.unregister()

    with ExitStack() as stack:
        mine, others = (stack.enter_context(end) for end in socket.socketpair())
        thread = threading.Thread(target=serve)
        clients.start(thread, mine)
        with ThreadPoolExecutor(1) as pool:
            room = pool.submit(clients.wait_for_room)
            others.settimeout(10)
            assert others.recv(1) == b"", "it has been dismissed"
            with pytest.raises(TimeoutError):
                room.result(0.2)
            gate.set()
            assert room.result(10)
        thread.join(10)
    assert refused.is_set()


def test_room_for_others_when_some_leave(server: MetricsServer, connect: Callable[..., socket.socket]) -> None:
    """When clients go, their threads end."""
    clients = [connect() for _ in range(MAX_CLIENTS)]
    assert until(lambda: len(our_threads()) == MAX_CLIENTS + 1)
    for client in clients:
        client.close()
    assert until(lambda: len(our_threads()) == 1)


def test_stop_while_a_client_waits_for_room(server: MetricsServer, connect: Callable[..., socket.socket]) -> None:
    """A server that is full, with more clients waiting, stops at once."""
    for _ in range(MAX_CLIENTS + 20):
        connect()
    assert until(lambda: len(our_threads()) >= MAX_CLIENTS)
    began, before = time.monotonic(), core_waits_s()
    server.stop()
    assert time.monotonic() - began < 2.0 + waited_for_a_core_s(since=before)
