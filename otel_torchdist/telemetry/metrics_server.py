"""Serves `/metrics` over HTTP: prometheus_client's application on a server that slow clients cannot hold up.

`prometheus_client.start_http_server` was not enough: on `localhost` it may listen on IPv6 only, it asks the DNS for
this host's name, its threads have no names, it waits for any number of clients for any time, it prints errors of
their connections on the training script's stderr, and a forked DataLoader worker keeps its port.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import make_wsgi_app  # pyright: ignore[reportUnknownVariableType]

from otel_torchdist.environment_variables import OTEL_EXPORTER_PROMETHEUS_HOST, OTEL_EXPORTER_PROMETHEUS_PORT
from otel_torchdist.telemetry.scrape_clients import ScrapeClients
from otel_torchdist.telemetry.shared_page import App, SharedPage

PORTS_TRIED: Final = 16
CLIENT_TIMEOUT_S: Final = 10.0
STOP_TIMEOUT_S: Final = 2.0
_POLL_S: Final = 0.25
_BACKLOG: Final = 1024
"""Connections that the kernel keeps while they wait for room; a client whose connection it drops waits for seconds."""
_LAST_PORT: Final = 65535

_logger = logging.getLogger("otel_torchdist")


class MetricsServer:
    """Serves a registry on one port, from daemon threads, until it is stopped.

    Attributes:
        port: The port that is served; None while none is.
    """

    def __init__(self, host: str, port: int, registry: CollectorRegistry, last_port: int | None = None) -> None:
        """Nothing is opened yet.

        Args:
            host: Address or name to listen on; IPv4 where it has both.
            port: The first of the 16 ports that are tried; 0 for any free one.
            registry: What to serve.
            last_port: Where a predecessor served it, to be tried before all others if it is among those 16.
        """
        self._host = host
        self._first_port = port
        self._last_port = last_port
        self._registry = registry
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self.port: int | None = None

    def start(self) -> bool:
        """Listen and serve; returns False, after one warning, when that is not possible."""
        if self._server is not None:
            return True
        self._server = self._open()
        if self._server is None:
            return False
        self._server.set_app(self._server.at_work(SharedPage(cast("App", make_wsgi_app(self._registry)))))
        self.port = self._server.server_port
        if self._first_port not in (0, self.port):
            _logger.info("port %d is taken: /metrics is served on port %d", self._first_port, self.port)
        in_child = weakref.WeakMethod(self._close_in_child)
        os.register_at_fork(after_in_child=lambda: (close := in_child()) and close())
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="torchdist-metrics", daemon=True
        )
        self._thread.start()
        return True

    def stop(self) -> None:
        """Close the port and every connection, and wait for the threads; idempotent."""
        server, self._server = self._server, None
        if server is None or self._thread is None:
            return
        server.clients.close()
        server.shutdown()
        server.server_close()
        server.clients.dismiss_all(STOP_TIMEOUT_S)
        self._thread.join(STOP_TIMEOUT_S)
        self.port = None

    def _open(self) -> _Server | None:
        first = self._first_port
        ports = list(range(first, min(first + PORTS_TRIED, _LAST_PORT + 1))) if first else [0]
        if self._last_port is not None and (self._last_port in ports or not first):
            ports.insert(0, self._last_port)
        try:
            family, host = _resolve(self._host)
            for port in ports:
                try:
                    return _Server(family, (host, port))
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:
                        raise
        except (OSError, UnicodeError) as error:  # a name that is no name fails as UnicodeError
            _logger.warning(
                "%s=%.100r, %s=%d: cannot listen there (%s): /metrics is not served",
                OTEL_EXPORTER_PROMETHEUS_HOST, self._host, OTEL_EXPORTER_PROMETHEUS_PORT, first, error,
            )  # fmt: skip
            return None
        _logger.warning(
            "%s=%d: all ports from %d to %d are taken: /metrics is not served",
            OTEL_EXPORTER_PROMETHEUS_PORT, first, first, ports[-1],
        )  # fmt: skip
        return None

    def _close_in_child(self) -> None:
        """A forked child has no thread to serve with, and must not keep the port from its parent."""
        server, self._server = self._server, None
        if server is not None:
            server.close_sockets()


def _resolve(host: str) -> tuple[socket.AddressFamily, str]:
    """Address family and address to listen on."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # A client that asks for `localhost` tries 127.0.0.1 too, but one that asks for 127.0.0.1 never tries ::1.
    found.sort(key=lambda info: info[0] != socket.AF_INET)
    return found[0][0], str(found[0][4][0])


class _DebugLog(io.TextIOBase):
    """Takes what wsgiref would print on stderr about a client that went away."""

    def write(self, text: str) -> int:
        _logger.debug("/metrics: %s", text.rstrip())
        return len(text)


class _Handler(WSGIRequestHandler):
    """Answers one request, and gives up on a client that does not read or write for a while."""

    timeout = CLIENT_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a scrape every few seconds is no news."""

    def get_stderr(self) -> io.TextIOBase:
        return _DebugLog()


class _Server(WSGIServer):
    """A thread for each client.

    Attributes:
        clients: Who is connected.
    """

    request_queue_size = _BACKLOG

    def __init__(self, family: socket.AddressFamily, address: tuple[str, int]) -> None:
        self.address_family = family
        self.clients = ScrapeClients()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # As in WSGIServer, but without the question to the DNS.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def at_work(self, app: App) -> App:
        """An application whose clients are not slow while it makes their answers."""

        def at_work(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
            with self.clients.at_work():
                return app(environ, start_response)

        return at_work

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.clients.wait_for_room():
            self.shutdown_request(request)
            return
        thread = threading.Thread(
            target=self._serve, args=(request, client_address), name="torchdist-metrics-client", daemon=True
        )
        self.clients.start(thread, request)

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            self.clients.left()
            self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _logger.debug("/metrics: the connection of %s failed", client_address, exc_info=True)

    def close_sockets(self) -> None:
        """As `ScrapeClients.close_in_child`, for the port as well."""
        self.socket.close()
        self.clients.close_in_child()
