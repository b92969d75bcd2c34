"""Bounds the head of a request: `http.server` would keep 100 headers of 64 KiB for each client that comes."""

from __future__ import annotations

import contextlib
import io
import socket
import time
from typing import Final

from otel_torchdist.errors import TorchDistError

MAX_HEAD: Final = 16 << 10
"""Bytes of the request line and all headers together, their ends included."""
DISCARD_S: Final = 1.0
_MAX_DISCARDED: Final = 1 << 20
_PORTION: Final = 16 << 10


class HeadTooLargeError(TorchDistError):
    """A request line and its headers are larger than `MAX_HEAD`."""


class BoundedHead(io.BufferedIOBase):
    """A connection's input, from which at most `MAX_HEAD` bytes are read as lines; bodies are the application's."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        """Read from `stream`, which this closes."""
        self._stream = stream
        self._left = MAX_HEAD

    def readline(self, size: int | None = -1, /) -> bytes:
        """Read a line of the head.

        Raises:
            HeadTooLargeError: It would exceed the bound.
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
    """Read on for up to a second, keeping nothing: to close with unread input would reset the connection.

    A client that still sends would then find its connection reset, and no answer.
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
