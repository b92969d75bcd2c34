"""Limits for reading an archive that anyone may have packed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_torchdist.errors import TorchDistError
from otel_torchdist.system.files.unpacking import FREE_BYTES, UnpackBudget

NO_MEMORY: Final = "there is not enough memory to read it"
HEADERS_PER_MEMBER: Final = 4096
"""Bytes of headers that an archive may have for each member, beyond those that are free."""
MAX_REPETITION: Final = 4
"""Bytes of compressed members per byte of the archive, beyond those that are free: gzip's output does not shrink."""


@dataclass(frozen=True, slots=True)
class ReadingLimits:
    """Bounds on what is read of files that anyone may have packed.

    Attributes:
        file_bytes: Bytes of one file, unpacked. The dump of a default ring with stacks has less than 2 MiB.
        total_bytes: Bytes of all members of an archive.
        members: Members of an archive.
        contents_bytes: Bytes of a zip's table of contents, which `zipfile` reads as a whole.
        free_headers: Bytes of headers that any archive may have.
        free_compressed: Bytes of compressed members that any archive may have.
        free_bytes: Output that all files together may have, however small they are.
    """

    file_bytes: int = 64 << 20
    total_bytes: int = 8 << 30
    members: int = 100_000
    contents_bytes: int = 32 << 20
    free_headers: int = 16 << 20
    free_compressed: int = 2 << 20
    free_bytes: int = FREE_BYTES


USUAL: Final = ReadingLimits()


class UnreadableError(TorchDistError):
    """A file or an archive cannot be read; the message says why."""


class ArchiveLimits:
    """Counts what one archive contains, and ends reading at a limit.

    All methods raise `UnreadableError` or `TooLargeError` at a limit.

    Attributes:
        limits: The limits.
    """

    def __init__(self, size: int, allowance: UnpackBudget, limits: ReadingLimits = USUAL) -> None:
        """Begin to count.

        Args:
            size: Bytes of the archive.
            allowance: Output that is still allowed; shared with other archives.
            limits: The limits.
        """
        self.limits = limits
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
        if self._output > self.limits.total_bytes:
            raise UnreadableError(f"it unpacks to more than {self.limits.total_bytes >> 30} GiB; the rest is not read")

    def add_member(self) -> None:
        """Count a member."""
        self._members += 1
        if self._members > self.limits.members:
            raise UnreadableError(f"it has more than {self.limits.members:,} members; the rest is not read")

    def add_header(self, size: int) -> None:
        """Count bytes of headers."""
        self._headers += size
        if self._headers > self.limits.free_headers + HEADERS_PER_MEMBER * self._members:
            raise UnreadableError(
                f"the headers of {self._members:,} members have more than {self._headers - size:,} bytes; the rest is "
                "not read"
            )

    def add_compressed(self, size: int) -> None:
        """Count a member that is compressed by itself, of `size` bytes, which another limit applies to."""
        self._compressed += size
        if self._compressed > self.limits.free_compressed + MAX_REPETITION * self._input:
            raise UnreadableError(
                f"its compressed members have more than {MAX_REPETITION} times its size; the rest is not read: unpack "
                "it to have it read"
            )
