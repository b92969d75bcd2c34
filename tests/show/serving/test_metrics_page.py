"""The port of `/metrics`."""

import logging
import os
import socket
import threading
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import make_wsgi_app

from deploy.native.ports import free_port
from otel_torchdist.show.serving.http_server import HttpServer, SharedPage
from otel_torchdist.show.serving.metrics_page import PORTS_TRIED, RETRY_S, MetricsServer
from tests.support.waiting import until

BODY_VALUE = "answer 42.0"


@pytest.fixture
def registry() -> CollectorRegistry:
    """A registry with one gauge."""
    registry = CollectorRegistry()
    Gauge("answer", "Of everything.", registry=registry).set(42)
    return registry


def get(port: int | None, host: str = "127.0.0.1") -> str:
    """Scrape a port."""
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as response:
        return response.read().decode()


def listen(port: int = 0) -> socket.socket:
    """Take a port, as another program would."""
    taken = socket.create_server(("127.0.0.1", port), reuse_port=False)
    return taken


def connected(port: int | None) -> socket.socket:
    """A client that asks nothing yet."""
    return socket.create_connection(("127.0.0.1", port or 0), timeout=10)


def our_threads() -> list[threading.Thread]:
    """Threads of any server of ours."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("torchdist-metrics")]


def open_sockets() -> set[str]:
    """This process's sockets by their inode."""
    found: set[str] = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor used for listing is gone already
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {link for link in found if link.startswith("socket:")}


@contextmanager
def served_within(registry: CollectorRegistry, **limits: float) -> Iterator[int]:
    """Serve a registry within other limits than those of production; yields the port."""
    server = HttpServer("127.0.0.1", [0], "metrics", **limits)  # type: ignore[arg-type]
    server.serve(SharedPage(make_wsgi_app(registry)))
    yield server.port
    server.stop()


@pytest.fixture
def server(registry: CollectorRegistry) -> Iterator[MetricsServer]:
    """A running server on any port."""
    server = MetricsServer("127.0.0.1", 0, registry)
    assert server.start()
    yield server
    server.stop()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "0.0.0.0"])
def test_serves_where_it_is_configured(registry: CollectorRegistry, host: str) -> None:
    """Port 0 is any free one, and IPv4 clients are served under the default host `localhost` too."""
    server = MetricsServer(host, 0, registry)
    assert server.start()
    assert BODY_VALUE in get(server.port)
    server.stop()
    assert server.port is None


def test_loopback_only(server: MetricsServer) -> None:
    """On its default address it is not reachable from other hosts."""
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", server.port or 0), timeout=5)


def test_ipv6_address(registry: CollectorRegistry) -> None:
    """An IPv6 address is served as such."""
    if not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("this machine has no IPv6")
    server = MetricsServer("::1", 0, registry)
    assert server.start()
    assert BODY_VALUE in get(server.port, "[::1]")
    server.stop()


def test_taken_port(registry: CollectorRegistry, caplog: pytest.LogCaptureFixture) -> None:
    """The next free port is used instead, and the log names it; nothing is logged for a port that was free."""
    first = free_port(3)
    caplog.set_level(logging.INFO)
    with closing(listen(first)), ExitStack() as stack:
        ports = []
        for _ in range(2):
            server = MetricsServer("127.0.0.1", first, registry)
            assert server.start()
            stack.callback(server.stop)
            ports.append(server.port)
            assert BODY_VALUE in get(server.port)
    assert ports == [first + 1, first + 2]
    assert [(record.levelname, record.args) for record in caplog.records] == [
        ("INFO", (first, first + 1)),
        ("INFO", (first, first + 2)),
    ]
    caplog.clear()
    server = MetricsServer("127.0.0.1", first, registry)
    assert server.start()
    server.stop()
    assert caplog.records == []


def test_all_ports_taken(registry: CollectorRegistry, caplog: pytest.LogCaptureFixture) -> None:
    """With 16 ports taken there is one warning and no server, and stopping it is not an error."""
    first = free_port(PORTS_TRIED)
    before = set(threading.enumerate())
    with ExitStack() as stack:
        for port in range(first, first + PORTS_TRIED):
            stack.enter_context(closing(listen(port)))
        server = MetricsServer("127.0.0.1", first, registry)
        assert not server.start()
    server.stop()
    assert set(threading.enumerate()) <= before
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"OTEL_EXPORTER_PROMETHEUS_PORT={first}" in record.getMessage()
    assert f"from {first} to {first + 15}" in record.getMessage()


def test_port_that_becomes_free(registry: CollectorRegistry, caplog: pytest.LogCaptureFixture) -> None:
    """It is tried again from time to time, without another warning, and the log reports when it is served after all."""
    now = [0.0]
    caplog.set_level(logging.INFO)
    first = free_port(PORTS_TRIED)
    server = MetricsServer("127.0.0.1", first, registry, clock=lambda: now[0])
    with ExitStack() as stack:
        for port in range(first, first + PORTS_TRIED):
            stack.enter_context(closing(listen(port)))
        assert not server.start()
        assert not server.start(), "it is too soon"
        now[0] += RETRY_S
        assert not server.start()
    assert not server.start(), "it is too soon again"
    now[0] += RETRY_S
    assert server.start()
    assert BODY_VALUE in get(server.port)
    server.stop()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert caplog.messages[1] == f"/metrics is now served on port {first}"


def test_last_port(registry: CollectorRegistry) -> None:
    """The search does not run past port 65535."""
    server = MetricsServer("127.0.0.1", 65535, registry)
    try:
        taken = listen(65535)
    except OSError:
        pytest.skip("port 65535 is in use")
    with closing(taken):
        assert not server.start()


@pytest.mark.parametrize("host", ["203.0.113.7", "x" * 70, "a b"])
def test_address_that_is_not_here(registry: CollectorRegistry, caplog: pytest.LogCaptureFixture, host: str) -> None:
    """A host that is no address of this machine is one warning with its name, and no server."""
    server = MetricsServer(host, 9464, registry)
    assert not server.start()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"OTEL_EXPORTER_PROMETHEUS_HOST={host!r}" in record.getMessage()


def test_stop_leaves_nothing(registry: CollectorRegistry) -> None:
    """After `stop` there is neither thread nor socket, the port is free, and the server can start again."""
    before = open_sockets()
    server = MetricsServer("127.0.0.1", 0, registry)
    assert server.start()
    assert server.start()
    port = server.port or 0
    assert BODY_VALUE in get(port)
    assert [thread.daemon for thread in our_threads()] == [True] * len(our_threads())
    server.stop()
    server.stop()
    assert our_threads() == []
    assert open_sockets() <= before
    again = MetricsServer("127.0.0.1", port, registry)
    assert again.start()
    assert again.port == port
    again.stop()
    assert server.start()
    assert BODY_VALUE in get(server.port)
    server.stop()


def test_silent_client_is_given_up(registry: CollectorRegistry, capfd: pytest.CaptureFixture[str]) -> None:
    """After the timeout the connection is closed, and stderr stays clean."""
    with served_within(registry, client_timeout_s=0.1) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(b"GET /metr")
            assert client.recv(1) == b""
        assert until(lambda: len(our_threads()) == 1)
    assert capfd.readouterr().err == ""


def test_client_that_does_not_read(capfd: pytest.CaptureFixture[str]) -> None:
    """An answer that is not read, or that is cut off, ends silently."""
    registry = CollectorRegistry()
    gauge = Gauge("many", "Too much for the buffers of a connection.", ["number"], registry=registry)
    for number in range(3_000):
        gauge.labels("x" * 5_000 + str(number)).set(1)
    with served_within(registry, client_timeout_s=0.3) as port, connected(port) as client, connected(port) as gone:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        gone.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        gone.close()
        assert until(lambda: len(our_threads()) > 1)
        assert until(lambda: len(our_threads()) == 1)
    assert capfd.readouterr().err == ""


def test_forked_child_does_not_keep_the_port(server: MetricsServer, registry: CollectorRegistry) -> None:
    """A DataLoader worker inherits the socket; the port is free when the parent stops, though the child lives on."""
    port = server.port or 0
    ours, childs = socket.socketpair()
    with warnings.catch_warnings():
        # Python 3.12 and later warn of a fork with threads, which is what DataLoader does.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        ours.close()
        childs.send(b".")
        childs.recv(1)
        server.stop()
        os._exit(0)
    ours.recv(1)  # the child's handlers of the fork have run
    assert BODY_VALUE in get(port)
    server.stop()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    again = MetricsServer("127.0.0.1", port, registry)
    assert again.start()
    assert again.port == port
    again.stop()
    ours.close()
    childs.close()
    assert os.waitpid(child, 0)[1] == 0


def test_nonsense_gets_an_answer(server: MetricsServer, capfd: pytest.CaptureFixture[str]) -> None:
    """Requests that are not HTTP (a scrape over TLS) are refused, with nothing on stderr, and scrapes go on."""
    with socket.create_connection(("127.0.0.1", server.port or 0), timeout=10) as client:
        client.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert b"400" in client.recv(400)
    assert BODY_VALUE in get(server.port)
    assert capfd.readouterr().err == ""
