"""The clients connected to `/metrics`. Their number is bounded; at the bound, slow clients are dismissed."""

from __future__ import annotations

import contextlib
import io
import math
import socket
import threading
import time
from collections.abc import Generator
from typing import Final

from otel_torchdist.errors import TorchDistError

MAX_CLIENTS: Final = 128
PATIENCE_S: Final = 0.25
"""Seconds for a client to send its request, or to read its response, while other clients wait to be admitted."""

_AT_WORK: Final = math.inf


class ScrapeClients:
    """Bounds the threads and descriptors of clients. A silent client cannot keep other clients from being served."""

    def __init__(self, most: int = MAX_CLIENTS) -> None:
        """Admit up to `most` clients."""
        self._most = most
        self._changed = threading.Condition()
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._dismissed: dict[threading.Thread, socket.socket] = {}
        """Clients whose threads have not noticed their dismissal; until then they hold a thread and a descriptor."""
        self._slow_since: dict[threading.Thread, float] = {}
        """Time since which the server waits for the client; infinite while the server makes the client's response."""
        self._is_closed = False

    def wait_for_room(self) -> bool:
        """Wait until one more client can be served, dismissing a slow one if necessary; returns False once closed."""
        with self._changed:
            while len(self._connections) + len(self._dismissed) >= self._most and not self._is_closed:
                if self._dismissed:
                    self._changed.wait()
                    continue
                slowest = min(self._slow_since, key=lambda thread: self._slow_since[thread])
                left_s = self._slow_since[slowest] + PATIENCE_S - time.monotonic()
                if left_s <= 0:
                    self._dismiss(slowest)
                else:
                    self._changed.wait(None if left_s == math.inf else left_s)
            return not self._is_closed

    def start(self, thread: threading.Thread, connection: socket.socket) -> None:
        """Start the thread of a new client; the thread must call `unregister` when it ends."""
        with self._changed:
            thread.start()
            self._connections[thread] = connection
            self._slow_since[thread] = time.monotonic()

    def unregister(self) -> None:
        """Unregister the calling thread, whose client has been served or has disconnected."""
        with self._changed:
            self._dismissed.pop(threading.current_thread(), None)
            self._forget(threading.current_thread())

    @contextlib.contextmanager
    def at_work(self) -> Generator[None, None, None]:
        """Mark the client as not slow while the calling thread makes a response.

        Raises:
            ConnectionAbortedError: The client was dismissed; its unfinished input may look like a request.
        """
        with self._changed:
            if threading.current_thread() in self._dismissed:
                raise ConnectionAbortedError("dismissed")
            self._be_slow_since(_AT_WORK)
        try:
            yield
        finally:
            self._be_slow_since(time.monotonic())

    @contextlib.contextmanager
    def awaiting_input(self) -> Generator[None, None, None]:
        """Mark the client as slow while the calling thread waits for the rest of its request. Used inside `at_work`."""
        self._be_slow_since(time.monotonic())
        try:
            yield
        finally:
            self._be_slow_since(_AT_WORK)

    def close(self) -> None:
        """End all waits for room."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def dismiss_all(self, timeout_s: float) -> None:
        """Close all open connections, which ends their threads."""
        with self._changed:
            for thread in list(self._connections):
                self._dismiss(thread)
            threads = list(self._dismissed)
        deadline = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))

    def close_in_child(self) -> None:
        """Close the descriptors without notifying the clients: they are copies of the parent's."""
        for connection in (*self._connections.values(), *self._dismissed.values()):
            connection.close()

    def _be_slow_since(self, since: float) -> None:
        with self._changed:
            if threading.current_thread() in self._slow_since:  # else it was dismissed
                self._slow_since[threading.current_thread()] = since
                self._changed.notify_all()

    def _dismiss(self, thread: threading.Thread) -> None:
        self._dismissed[thread] = connection = self._connections[thread]
        self._forget(thread)
        with contextlib.suppress(OSError):  # already disconnected
            connection.shutdown(socket.SHUT_RDWR)

    def _forget(self, thread: threading.Thread) -> None:
        self._connections.pop(thread, None)
        self._slow_since.pop(thread, None)
        self._changed.notify_all()


# --- heads of requests ------------------------------------------------------------------------------------------------
# Bounds the head of a request: `http.server` would keep 100 headers of 64 KiB for each client.


MAX_HEAD: Final = 16 << 10
"""Bytes of the request line and all headers together, with their line ends."""
DISCARD_S: Final = 1.0
_MAX_DISCARDED: Final = 1 << 20
_PORTION: Final = 16 << 10


class HeadTooLargeError(TorchDistError):
    """The head of a request is larger than `MAX_HEAD`."""


class BoundedHead(io.BufferedIOBase):
    """A connection's input, from which at most `MAX_HEAD` bytes are read as lines. Bodies are not limited here."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        """Read from `stream`, which this closes."""
        self._stream = stream
        self._left = MAX_HEAD

    def readline(self, size: int | None = -1, /) -> bytes:
        """Read a line of the head.

        Raises:
            HeadTooLargeError: The head would exceed the bound.
        """
        most = self._left + 1 if size is None or size < 0 else min(size, self._left + 1)
        line = self._stream.readline(most)
        self._left -= len(line)
        if self._left < 0:
            raise HeadTooLargeError(f"the head of a request is larger than {MAX_HEAD} bytes")
        return line

    def read(self, size: int | None = -1, /) -> bytes:
        """Read from the body."""
        return self._stream.read(size)

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()
        super().close()


def discard_input(connection: socket.socket) -> None:
    """Read and discard input for up to a second.

    Closing a connection with unread input resets it, and a client that still sends would not see the response.
    """
    deadline, discarded = time.monotonic() + DISCARD_S, 0
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        while discarded < _MAX_DISCARDED and (left_s := deadline - time.monotonic()) > 0:
            connection.settimeout(left_s)
            portion = len(connection.recv(_PORTION))
            if not portion:
                return
            discarded += portion
