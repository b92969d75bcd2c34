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
_FIRST_PIECE_BYTES: Final = 512
"""Input for a new decompressor. It copies the input beyond the end of its member, and members may be 20 bytes long."""


class TooLargeError(TorchDistError):
    """A file unpacks to more than the limit, which the message gives."""


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Read at most `size` bytes; b'' at the end."""
        ...


class Allowance(Protocol):
    """A limit on the output, which grows with the input."""

    def give(self, packed_bytes: int, /) -> None:
        """Allow the output of `packed_bytes` of input."""
        ...


class UnpackBudget:
    """The bytes that decompression may still produce, for all files of one command together."""

    def __init__(self, free_bytes: int = FREE_BYTES) -> None:
        self._free_bytes = free_bytes
        self._remaining = free_bytes

    def give(self, packed_bytes: int, /) -> None:
        """Allow the output of `packed_bytes` of input."""
        self._remaining += packed_bytes * MAX_RATIO

    def take(self, unpacked_bytes: int) -> None:
        """Use up `unpacked_bytes` of the allowed output.

        Raises:
            TooLargeError: The allowance is used up.
        """
        self._remaining = max(self._remaining - unpacked_bytes, -1)
        if self._remaining < 0:
            raise TooLargeError(
                f"it unpacks to more than {MAX_RATIO} times its size and more than {self._free_bytes >> 20} MiB; "
                "the rest is not read: unpack it to have it read"
            )


class MeteredFile:
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
        self._offset = 0
        self._member: Any = None
        self._piece_bytes = _FIRST_PIECE_BYTES
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
            self._offset += len(piece) - len(member.unused_data if member.eof else member.unconsumed_tail)
            self._piece_bytes = min(2 * self._piece_bytes, _BUFFER_BYTES)
            self._member = None if member.eof else member
            if not output and not piece and not member.eof:
                raise EOFError("the end of the compressed file is missing")
            if output:
                return output
        return b""

    def _next_member(self) -> Any:
        """Skip zeros; return a decompressor for the next member, or None at the end."""
        self._piece_bytes = _FIRST_PIECE_BYTES
        while piece := self._next_piece():
            after_zeros = piece if self._is_first else piece.lstrip(b"\0")
            self._offset += len(piece) - len(after_zeros)
            if after_zeros:
                self._is_first = False
                return zlib.decompressobj(wbits=31)
        return None

    def _next_piece(self) -> bytes:
        if self._offset == len(self._buffer):
            self._buffer, self._offset = self._stream.read(_BUFFER_BYTES), 0
        return self._buffer[self._offset : self._offset + self._piece_bytes]


def gunzip(content: bytes, max_bytes: int) -> tuple[bytes, Exception | None]:
    """Decompress gzip in memory.

    Returns:
        At most `max_bytes`, and the error that ended decompression early, or None.
    """
    stream = GzipStream(io.BytesIO(content))
    output = io.BytesIO()  # `getvalue` makes no copy at the end, unlike joining parts
    try:
        while (missing := max_bytes - output.tell()) > 0 and (part := stream.read(min(missing, 1 << 20))):
            output.write(part)
    except (EOFError, zlib.error) as error:
        return output.getvalue(), error
    return output.getvalue(), None


def gunzip_start(stream: Readable, max_bytes: int) -> bytes:
    """Decompress the first `max_bytes` of gzip, or fewer if the file is damaged."""
    gzip_stream, content = GzipStream(stream), b""
    try:
        while (missing := max_bytes - len(content)) > 0 and (part := gzip_stream.read(missing)):
            content += part
    except (OSError, EOFError, zlib.error):
        pass
    return content
