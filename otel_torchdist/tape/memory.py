"""Access to the bytes of a tape: the file of another process's tape, or this process's own mapping."""

from __future__ import annotations

import os
import struct
import weakref
from typing import Protocol

from otel_torchdist.errors import TapeError
from otel_torchdist.system.files.kept import close_if, identity_of, refers_to
from otel_torchdist.tape import layout

_WORD = struct.Struct("=Q")


class TapeMemory(Protocol):
    """Bytes of a tape, which may change during a read. Words are indexed as in `LiveWord`.

    Attributes:
        size: Total size in bytes.
        readonly: Whether words cannot be stored.
    """

    size: int
    readonly: bool

    def __getitem__(self, word: int) -> int:
        """Return one 64-bit word."""
        ...

    def __setitem__(self, word: int, value: int) -> None:
        """Store one 64-bit word."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Return a copy of some bytes."""
        ...

    def close(self) -> None:
        """Release the memory."""
        ...


class FileMemory:
    """A tape's file, read by system calls.

    A mapping would be dangerous: if the file is truncated, access to the missing pages kills the process with SIGBUS,
    and files in `/dev/shm` cannot be sealed. A short read is only an error. Reading many records at once is as fast as
    a mapping (see `TapeReader`), and checksums detect records that change during a read.
    """

    def __init__(self, file: int, readonly: bool, where: str) -> None:
        """Take ownership of an open file's descriptor.

        Args:
            file: Its descriptor.
            readonly: Whether it was opened for reading only.
            where: The tape's path, for errors.
        """
        self.size = os.fstat(file).st_size
        self.readonly = readonly
        self._file = file
        self._where = where
        self._identity = identity_of(file)
        # Closes the file if a reader is dropped without `close`, unless the program has closed the descriptor.
        self._finalizer = weakref.finalize(self, close_if, file, self._identity)
        self._finalizer.atexit = False

    def __getitem__(self, word: int) -> int:
        """Return one 64-bit word.

        Raises:
            TapeError: The file has become too short.
        """
        value: int = _WORD.unpack(self.read(word << 3, 8))[0]
        return value

    def __setitem__(self, word: int, value: int) -> None:
        """Store one 64-bit word; aligned words are stored atomically.

        Raises:
            TapeError: The file cannot be written to.
        """
        if not refers_to(self._file, self._identity):
            raise TapeError(f"{self._where}: cannot be written to: its descriptor was closed by other code")
        try:
            os.pwrite(self._file, _WORD.pack(value), word << 3)
        except OSError as error:
            raise TapeError(f"{self._where}: cannot be written to: {error}") from error

    def read(self, offset: int, size: int) -> bytes:
        """Return a copy of some bytes.

        Raises:
            TapeError: The file has become too short, or cannot be read.
        """
        try:
            content = os.pread(self._file, size, offset)
        except OSError as error:
            raise TapeError(f"{self._where}: cannot be read: {error}") from error
        if len(content) != size:
            raise TapeError(f"{self._where}: truncated while it was read")
        return content

    def close(self) -> None:
        """Close the file."""
        self._finalizer()
        self._file = -1


class OwnMemory:
    """The tape that this process writes, read through the writer's mapping."""

    def __init__(self, data: memoryview) -> None:
        """Read from `data`, which the writer still owns."""
        self.size = len(data)
        self.readonly = False
        self._data = data
        self._words = data.cast("Q")

    def __getitem__(self, word: int) -> int:
        """Return one 64-bit word."""
        return self._words[word]

    def __setitem__(self, word: int, value: int) -> None:
        """Store one 64-bit word."""
        self._words[word] = value

    def read(self, offset: int, size: int) -> bytes:
        """Return a copy of some bytes."""
        return bytes(self._data[offset : offset + size])

    def close(self) -> None:
        """Release the views."""
        self._words.release()
        self._data.release()


def numbers_in(memory: TapeMemory, offset: int, records: int) -> list[int]:
    """Return the numbers of consecutive records starting at `offset`."""
    numbers: list[int] = []
    for first in range(0, records, _RECORDS_AT_ONCE):
        count = min(records - first, _RECORDS_AT_ONCE)
        data = memory.read(offset + first * layout.RECORD_SIZE, count * layout.RECORD_SIZE)
        numbers += memoryview(data).cast("Q")[:: layout.RECORD_SIZE // 8].tolist()
    return numbers


_RECORDS_AT_ONCE = 4096
