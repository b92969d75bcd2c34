"""Ports on which nobody listens, and that no other program can take meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def refusing_port(host: str = "127.0.0.1") -> Iterator[int]:
    """Reserve a port that refuses connections; a server of a test may still be bound to it."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # servers set that too
        reserved.bind((host, 0))
        yield reserved.getsockname()[1]
