"""Limits for reading untrusted files and archives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_torchdist.errors import TorchDistError
from otel_torchdist.system.files.unpacking import FREE_BYTES, UnpackBudget

NO_MEMORY: Final = "there is not enough memory to read it"
HEADERS_PER_MEMBER: Final = 4096
"""Bytes of headers allowed per member, in addition to `ReadingLimits.free_headers`."""
MAX_COMPRESSED_PER_BYTE: Final = 4
"""Bytes of compressed members allowed per byte of the archive, in addition to `ReadingLimits.free_compressed`.

The output of gzip cannot be compressed much further.
"""


@dataclass(frozen=True, slots=True)
class ReadingLimits:
    """Upper bounds for reading untrusted files.

    Attributes:
        file_bytes: Bytes of one file, unpacked. The dump of a default ring buffer with stacks has less than 2 MiB.
        total_bytes: Bytes of all members of an archive.
        members: Members of an archive.
        contents_bytes: Bytes of a zip's central directory, which `zipfile` reads as a whole.
        free_headers: Bytes of headers, for an archive of any size.
        free_compressed: Bytes of compressed members, for an archive of any size.
        free_bytes: Unpacked bytes of all files together, for files of any size.
    """

    file_bytes: int = 64 << 20
    total_bytes: int = 8 << 30
    members: int = 100_000
    contents_bytes: int = 32 << 20
    free_headers: int = 16 << 20
    free_compressed: int = 2 << 20
    free_bytes: int = FREE_BYTES


DEFAULT_LIMITS: Final = ReadingLimits()


class UnreadableError(TorchDistError):
    """A file or an archive cannot be read; the message gives the reason."""


class ArchiveLimits:
    """Counters of one archive. All methods raise `UnreadableError` or `TooLargeError` at a limit."""

    def __init__(self, size: int, budget: UnpackBudget, limits: ReadingLimits = DEFAULT_LIMITS) -> None:
        """Start the counters at 0.

        Args:
            size: Bytes of the archive.
            budget: Remaining budget for unpacked bytes, shared with other archives.
            limits: The limits.
        """
        self.limits = limits
        self._size = size
        self._budget = budget
        self._input = 0
        self._output = 0
        self._members = 0
        self._headers = 0
        self._compressed = 0

    def give(self, packed: int, /) -> None:
        """Count bytes read from the archive, up to its size: a hostile zip may refer to the same bytes repeatedly."""
        packed = min(packed, self._size - self._input)
        self._input += packed
        self._budget.give(packed)

    def add_output(self, size: int) -> None:
        """Count decompressed bytes."""
        self._budget.take(size)
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
        """Count a member that is itself compressed, with its compressed size in bytes."""
        self._compressed += size
        if self._compressed > self.limits.free_compressed + MAX_COMPRESSED_PER_BYTE * self._input:
            raise UnreadableError(
                f"its compressed members have more than {MAX_COMPRESSED_PER_BYTE} times its size; the rest is not read"
                ": unpack it to have it read"
            )
