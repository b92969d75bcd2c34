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

PORTS_TRIED: Final = 16
MAX_CLIENTS: Final = 32
CLIENT_TIMEOUT_S: Final = 10.0
STOP_TIMEOUT_S: Final = 2.0
_POLL_S: Final = 0.25
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
        self._server.set_app(cast("Callable[..., Iterable[bytes]]", make_wsgi_app(self._registry)))
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
        server.shutdown()
        server.server_close()
        server.drop_clients()
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
    """A thread for each client, at most `MAX_CLIENTS`; one too many is turned away at once."""

    request_queue_size = MAX_CLIENTS

    def __init__(self, family: socket.AddressFamily, address: tuple[str, int]) -> None:
        self.address_family = family
        self._lock = threading.Lock()
        self._clients: dict[threading.Thread, socket.socket] = {}
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # As in WSGIServer, but without the question to the DNS.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(
            target=self._serve, args=(request, client_address), name="torchdist-metrics-client", daemon=True
        )
        with self._lock:
            welcome = len(self._clients) < MAX_CLIENTS
            if welcome:
                thread.start()
                self._clients[thread] = request
        if not welcome:
            self.shutdown_request(request)

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            self.shutdown_request(request)
            with self._lock:
                self._clients.pop(threading.current_thread(), None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _logger.debug("/metrics: the connection of %s failed", client_address, exc_info=True)

    def drop_clients(self) -> None:
        """End the connections that are still open, and their threads with them."""
        with self._lock:
            clients = dict(self._clients)
        for client in clients.values():
            try:
                client.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it has just ended by itself
        for thread in clients:
            thread.join(STOP_TIMEOUT_S)

    def close_sockets(self) -> None:
        """Give the descriptors back without a word to anybody: they are copies of the parent's."""
        self.socket.close()
        for client in self._clients.values():
            client.close()
