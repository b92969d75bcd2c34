"""Agents that listen on loopback, and peers that misbehave."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from otel_torchdist.node.job.peers import Peer
from otel_torchdist.show.serving.clients import MAX_CLIENTS
from otel_torchdist.show.serving.http_server import App, HttpServer

HOST = "127.0.0.1"
POLL_S = 0.02
"""How often servers look whether they should end; each test ends some."""


@contextlib.contextmanager
def served(app: App, most_clients: int = MAX_CLIENTS) -> Iterator[int]:
    """Serve an agent's application on a free port."""
    server = HttpServer(HOST, [0], "exchange", most_clients=most_clients, poll_s=POLL_S)
    server.serve(app)
    try:
        yield server.port
    finally:
        server.stop()


def peer_at(port: int, agent_id: int = 0) -> Peer:
    """An agent that listens on this port."""
    return Peer(agent_id, f"node-{agent_id}", HOST, port)


@contextlib.contextmanager
def stranger(behave: Callable[[socket.socket], None]) -> Iterator[int]:
    """Something that listens and handles each connection as it likes, on a thread of its own.

    Args:
        behave: Handles a connection; ends when that is closed.
    """
    listening = socket.create_server((HOST, 0))
    threads: list[threading.Thread] = []
    connections: list[socket.socket] = []

    def treat(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            behave(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                connections.append(connection)
                threads.append(threading.Thread(target=treat, args=(connection,)))
                threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        accepting.join(10)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(10)
