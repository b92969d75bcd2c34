"""Makes a server on loopback reachable from nodes with networks of their own."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def forwarded(host: str, port: int) -> Iterator[int]:
    """Forward TCP connections to a port of `host` to 127.0.0.1 and `port`; return the port of `host`."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", port)) as server:
                back = threading.Thread(target=_copy, args=(server, self.request), daemon=True)
                back.start()
                _copy(self.request, server)
                back.join()

    with socketserver.ThreadingTCPServer((host, 0), Handler) as forwarder:
        forwarder.daemon_threads = True
        thread = threading.Thread(target=forwarder.serve_forever, daemon=True)
        thread.start()
        yield forwarder.server_address[1]
        forwarder.shutdown()
        thread.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until one side has closed its connection, as clients that are killed do."""
    with contextlib.suppress(OSError):
        while chunk := source.recv(65_536):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)
