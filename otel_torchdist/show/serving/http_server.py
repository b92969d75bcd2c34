"""An HTTP server for a WSGI application, in daemon threads, that slow clients cannot block.

`prometheus_client.start_http_server` was not sufficient: on `localhost` it may listen on IPv6 only, it queries the DNS
for this host's name, its threads have no names, it waits for any number of clients without a timeout, it prints
connection errors to the training script's stderr, and a forked DataLoader worker keeps its port.

Concurrent requests share one page: a storm of scrapes costs no more than a few.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from otel_torchdist.show.serving.clients import (
    MAX_CLIENTS,
    BoundedHead,
    HeadTooLargeError,
    ScrapeClients,
    discard_input,
)
from otel_torchdist.system.files.kept import move_up

CLIENT_TIMEOUT_S: Final = 10.0
STOP_TIMEOUT_S: Final = 2.0
POLL_S: Final = 0.25
"""Seconds between two checks of whether to stop."""
_BACKLOG: Final = 1024
"""Connections queued by the kernel while they wait for room. If the kernel drops one, its client waits for seconds."""

_logger = logging.getLogger("otel_torchdist")


class HttpServer:
    """Serves an application on one port until it is stopped.

    Attributes:
        port: The port.
    """

    def __init__(
        self,
        host: str,
        ports: Iterable[int],
        name: str,
        *,
        most_clients: int = MAX_CLIENTS,
        client_timeout_s: float = CLIENT_TIMEOUT_S,
        poll_s: float = POLL_S,
    ) -> None:
        """Listen on the first free port; clients wait until `serve`.

        Args:
            host: Address or name to listen on; IPv4 if it has both.
            ports: Ports to try, in this order; 0 for any free one.
            name: Name of the threads.
            most_clients: See `ScrapeClients`.
            client_timeout_s: Longest time in which a client neither reads nor writes.
            poll_s: Seconds between two checks of whether to stop.

        Raises:
            OSError: The server cannot listen on this host; EADDRINUSE if all ports are taken.
            UnicodeError: The host is not a valid name.
        """
        self._name = name
        self._poll_s = poll_s
        self._server: _Server | None = _open(host, ports, name, ScrapeClients(most_clients), client_timeout_s)
        self._thread: threading.Thread | None = None
        self.port = self._server.server_port
        in_child = weakref.WeakMethod(self._close_in_child)
        os.register_at_fork(after_in_child=lambda: (close := in_child()) and close())

    def serve(self, app: App) -> None:
        """Answer with `app` from now on."""
        assert self._server is not None
        self._server.set_app(self._server.at_work(app))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(self._poll_s,), name=f"torchdist-{self._name}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Close the port and every connection, and wait for the threads; idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        server.clients.close()
        if self._thread is not None:
            server.shutdown()
        server.server_close()
        server.clients.dismiss_all(STOP_TIMEOUT_S)
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)

    def _close_in_child(self) -> None:
        """Close the sockets in a forked child: it has no serving thread, and its parent keeps the port."""
        server, self._server = self._server, None
        if server is not None:
            server.close_sockets()


def _open(host: str, ports: Iterable[int], name: str, clients: ScrapeClients, client_timeout_s: float) -> _Server:
    family, address = _resolve(host)
    taken: OSError | None = None
    for port in ports:
        try:
            return _Server(family, (address, port), name, clients, client_timeout_s)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            taken = error
    assert taken is not None
    raise taken


def _resolve(host: str) -> tuple[socket.AddressFamily, str]:
    """Return the address family and the address to listen on."""
    addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # A client that connects to `localhost` tries 127.0.0.1 too, but a client of 127.0.0.1 never tries ::1.
    addresses.sort(key=lambda info: info[0] != socket.AF_INET)
    return addresses[0][0], str(addresses[0][4][0])


class _DebugLog(io.TextIOBase):
    """Logs the messages that wsgiref would print to stderr about a client that disconnected."""

    def write(self, text: str) -> int:
        _logger.debug("HTTP: %s", text.rstrip())
        return len(text)


class _Body:
    """The body of a request. Reading it takes as long as the client needs to send it."""

    def __init__(self, stream: io.BufferedIOBase, clients: ScrapeClients) -> None:
        self._stream = stream
        self._clients = clients

    def read(self, size: int) -> bytes:
        with self._clients.awaiting_input():
            return self._stream.read(size)


class _Handler(WSGIRequestHandler):
    """Answers one request, and gives up on a client that does not read or write for a while."""

    requestline = request_version = command = ""  # for `send_error`, until the request line is read

    def setup(self) -> None:
        """Prepare to read the request."""
        assert isinstance(self.server, _Server)
        self.request.settimeout(self.server.client_timeout_s)
        super().setup()
        self.rfile = BoundedHead(self.rfile)

    def handle(self) -> None:
        """Answer the request."""
        try:
            super().handle()
        except HeadTooLargeError as error:
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, explain=str(error))
            self.wfile.flush()
            discard_input(self.connection)

    def get_environ(self) -> dict[str, Any]:
        """Return the WSGI environment of the request, with both addresses of the connection: they identify its user."""
        local = self.connection.getsockname()
        addresses = {
            "REMOTE_PORT": str(self.client_address[1]),
            "LOCAL_ADDR": str(local[0]),
            "LOCAL_PORT": str(local[1]),
        }
        return {**super().get_environ(), **addresses}

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a line for every scrape would fill the log."""

    def get_stderr(self) -> io.TextIOBase:
        return _DebugLog()


class _Server(WSGIServer):
    """Serves each client in its own thread.

    Attributes:
        clients: The connected clients.
        client_timeout_s: Longest time in which a client neither reads nor writes.
    """

    request_queue_size = _BACKLOG

    def __init__(
        self,
        family: socket.AddressFamily,
        address: tuple[str, int],
        name: str,
        clients: ScrapeClients,
        client_timeout_s: float,
    ) -> None:
        self.address_family = family
        self.clients = clients
        self.client_timeout_s = client_timeout_s
        self._name = name
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        self.socket = socket.socket(fileno=move_up(self.socket.detach()))
        # As in WSGIServer, but without the DNS query.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def at_work(self, app: App) -> App:
        """Wrap an application so that clients do not count as slow while it makes their responses."""

        def app_at_work(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
            with self.clients.at_work():
                return app({**environ, "wsgi.input": _Body(environ["wsgi.input"], self.clients)}, start_response)

        return app_at_work

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.clients.wait_for_room():
            self.shutdown_request(request)
            return
        thread = threading.Thread(
            target=self._serve, args=(request, client_address), name=f"torchdist-{self._name}-client", daemon=True
        )
        self.clients.start(thread, request)

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            self.shutdown_request(request)
            self.clients.unregister()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _logger.debug("HTTP: the connection of %s failed", client_address, exc_info=True)

    def close_sockets(self) -> None:
        """Close the port and the descriptors of all clients; see `ScrapeClients.close_in_child`."""
        self.socket.close()
        self.clients.close_in_child()


App = Callable[..., Iterable[bytes]]
_Headers = tuple[tuple[str, str], ...]

_VARIES_BY: Final = ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "HTTP_ACCEPT", "HTTP_ACCEPT_ENCODING")


@dataclass(frozen=True, slots=True)
class _Page:
    """A response, and the request that it answers.

    Attributes:
        request: The request.
        begun_at: Monotonic time at which its creation began. It answers equal requests received before that time.
        status: HTTP status.
        headers: HTTP headers.
        body: Response body.
    """

    request: tuple[str, ...]
    begun_at: float
    status: str
    headers: _Headers
    body: tuple[bytes, ...]


class SharedPage:
    """A WSGI application in front of another one, which it calls from one thread at a time.

    A request that comes while a page is being made waits for the next page, which serves all waiting requests. So a
    response is never older than its request.
    """

    def __init__(self, app: App) -> None:
        """Answer with the responses of `app`."""
        self._app = app
        self._making = threading.Lock()
        self._last: _Page | None = None

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        """Answer one request."""
        received_at = time.monotonic()
        request = tuple(str(environ.get(name, "")) for name in _VARIES_BY)
        with self._making:
            page = self._last
            if page is None or page.request != request or page.begun_at < received_at:
                page = self._last = self._make(environ, request)
        start_response(page.status, list(page.headers))
        return page.body

    def _make(self, environ: dict[str, Any], request: tuple[str, ...]) -> _Page:
        begun_at = time.monotonic()
        started: list[tuple[str, _Headers]] = []

        def start_response(status: str, headers: list[tuple[str, str]]) -> None:
            started.append((status, tuple(headers)))

        body = tuple(self._app(environ, start_response))
        [(status, headers)] = started
        return _Page(request, begun_at, status, headers, body)
