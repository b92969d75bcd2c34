"""Decompresses untrusted files within limits: a few bytes can unpack to gigabytes.

`UnpackBudget` limits the output, and so the time, in proportion to the input. `GzipStream` is fast on hostile files
too: `gzip.GzipFile` parses the file name in a header byte by byte in Python.
"""

from __future__ import annotations

import io
import zlib
from typing import Any, Final, Protocol

from otel_torchdist.errors import TorchDistError

FREE_BYTES: Final = 1 << 30
"""Output allowed for any input, however small."""
MAX_RATIO: Final = 250
"""Output allowed per byte of input, beyond `FREE_BYTES`. Dumps, traces and logs of real jobs reach 10 to 40."""
_BUFFER_BYTES: Final = 64 << 10
_FIRST_PIECE: Final = 512
"""Bytes given to a new decompressor. It copies the input after its end, and a file may have a member every 20 bytes."""


class TooLargeError(TorchDistError):
    """A file unpacks to more than the limit, which the message gives."""


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Read at most `size` bytes; b'' at the end."""
        ...


class Allowance(Protocol):
    """A limit of the output that grows with the input."""

    def give(self, packed: int, /) -> None:
        """Allow the output of `packed` bytes of input."""
        ...


class UnpackBudget:
    """The remaining output that decompression may produce, shared by all files of one command."""

    def __init__(self, free_bytes: int = FREE_BYTES) -> None:
        self._free_bytes = free_bytes
        self._left = free_bytes

    def give(self, packed: int, /) -> None:
        """Allow the output of `packed` bytes of input."""
        self._left += packed * MAX_RATIO

    def take(self, unpacked: int) -> None:
        """Use up `unpacked` bytes of output.

        Raises:
            TooLargeError: The allowance is used up.
        """
        self._left = max(self._left - unpacked, -1)
        if self._left < 0:
            raise TooLargeError(
                f"it unpacks to more than {MAX_RATIO} times its size and more than {self._free_bytes >> 20} MiB; "
                "the rest is not read: unpack it to have it read"
            )


class Counted:
    """A compressed file. Each read from it enlarges the allowance for its output."""

    def __init__(self, stream: Readable, allowance: Allowance) -> None:
        self._stream = stream
        self._allowance = allowance

    def read(self, size: int = -1, /) -> bytes:
        """Read at most `size` bytes."""
        content = self._stream.read(size)
        self._allowance.give(len(content))
        return content


class GzipStream:
    """The decompressed content of a gzip file: one or more members, each possibly followed by zeros."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._buffer: bytes = b""
        self._at = 0
        self._member: Any = None
        self._piece = _FIRST_PIECE
        self._is_first = True

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; empty only at the end.

        Raises:
            EOFError: The file is cut off.
            zlib.error: The file is damaged.
        """
        while (member := self._member or self._next_member()) is not None:
            piece = self._next_piece()
            output: bytes = member.decompress(piece, size)
            self._at += len(piece) - len(member.unused_data if member.eof else member.unconsumed_tail)
            self._piece = min(2 * self._piece, _BUFFER_BYTES)
            self._member = None if member.eof else member
            if not output and not piece and not member.eof:
                raise EOFError("the end of the compressed file is missing")
            if output:
                return output
        return b""

    def _next_member(self) -> Any:
        """Skip zeros; return a decompressor for the next member, or None at the end."""
        self._piece = _FIRST_PIECE
        while piece := self._next_piece():
            rest = piece if self._is_first else piece.lstrip(b"\0")
            self._at += len(piece) - len(rest)
            if rest:
                self._is_first = False
                return zlib.decompressobj(wbits=31)
        return None

    def _next_piece(self) -> bytes:
        if self._at == len(self._buffer):
            self._buffer, self._at = self._stream.read(_BUFFER_BYTES), 0
        return self._buffer[self._at : self._at + self._piece]


def gunzip(content: bytes, most: int) -> tuple[bytes, Exception | None]:
    """Decompress gzip in memory.

    Returns:
        Up to `most` bytes, and the error that ended decompression early, or None.
    """
    stream = GzipStream(io.BytesIO(content))
    output = io.BytesIO()  # `getvalue` makes no copy at the end, unlike joining parts
    try:
        while (left := most - output.tell()) > 0 and (part := stream.read(min(left, 1 << 20))):
            output.write(part)
    except (EOFError, zlib.error) as error:
        return output.getvalue(), error
    return output.getvalue(), None


def gunzip_start(stream: Readable, most: int) -> bytes:
    """Decompress the first `most` bytes of gzip, or fewer if the file is damaged."""
    unpacked, start = GzipStream(stream), b""
    try:
        while (left := most - len(start)) > 0 and (part := unpacked.read(left)):
            start += part
    except (OSError, EOFError, zlib.error):
        pass
    return start
