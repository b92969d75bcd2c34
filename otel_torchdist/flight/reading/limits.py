"""Limits for reading an archive that anyone may have packed."""

from __future__ import annotations

from typing import Final

from otel_torchdist.errors import TorchDistError
from otel_torchdist.files.unpacking import UnpackBudget

NO_MEMORY: Final = "there is not enough memory to read it"
MAX_TOTAL_BYTES: Final = 8 << 30
MAX_MEMBERS: Final = 100_000
FREE_HEADERS: Final = 16 << 20
HEADERS_PER_MEMBER: Final = 4096
"""Bytes of headers that an archive may have for each member, beyond `FREE_HEADERS`."""
FREE_COMPRESSED: Final = 2 << 20
MAX_REPETITION: Final = 4
"""Bytes of compressed members per byte of the archive, beyond `FREE_COMPRESSED`: gzip output does not shrink again."""


class UnreadableError(TorchDistError):
    """A file or an archive cannot be read; the message says why."""


class ArchiveLimits:
    """Counts what one archive contains, and ends reading at a limit.

    All methods raise `UnreadableError` or `TooLargeError` at a limit.
    """

    def __init__(self, size: int, allowance: UnpackBudget) -> None:
        """Begin to count.

        Args:
            size: Bytes of the archive.
            allowance: Output that is still allowed; shared with other archives.
        """
        self._size = size
        self._allowance = allowance
        self._input = 0
        self._output = 0
        self._members = 0
        self._headers = 0
        self._compressed = 0

    def give(self, packed: int, /) -> None:
        """Count bytes that were read from the archive. A hostile zip has the same bytes read again and again."""
        packed = min(packed, self._size - self._input)
        self._input += packed
        self._allowance.give(packed)

    def add_output(self, size: int) -> None:
        """Count decompressed bytes."""
        self._allowance.take(size)
        self._output += size
        if self._output > MAX_TOTAL_BYTES:
            raise UnreadableError(f"it unpacks to more than {MAX_TOTAL_BYTES >> 30} GiB; the rest is not read")

    def add_member(self) -> None:
        """Count a member."""
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise UnreadableError(f"it has more than {MAX_MEMBERS:,} members; the rest is not read")

    def add_header(self, size: int) -> None:
        """Count bytes of headers."""
        self._headers += size
        if self._headers > FREE_HEADERS + HEADERS_PER_MEMBER * self._members:
            raise UnreadableError(
                f"the headers of {self._members:,} members have more than {self._headers - size:,} bytes; the rest is "
                "not read"
            )

    def add_compressed(self, size: int) -> None:
        """Count a member that is compressed by itself, of `size` bytes, which another limit applies to."""
        self._compressed += size
        if self._compressed > FREE_COMPRESSED + MAX_REPETITION * self._input:
            raise UnreadableError(
                f"its compressed members have more than {MAX_REPETITION} times its size; the rest is not read: unpack "
                "it to have it read"
            )
