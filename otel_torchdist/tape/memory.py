"""The bytes of a tape: of a file that another process writes, or of the tape that this process writes itself."""

from __future__ import annotations

import os
import struct
import weakref
from typing import Protocol

from otel_torchdist.errors import TapeError
from otel_torchdist.tape import layout

_WORD = struct.Struct("=Q")


class TapeMemory(Protocol):
    """Bytes that change while they are read. Words are indexed as in `LiveWord`.

    Attributes:
        size: Bytes in all.
        readonly: Whether nothing can be stored.
    """

    size: int
    readonly: bool

    def __getitem__(self, word: int) -> int:
        """One 64-bit word."""
        ...

    def __setitem__(self, word: int, value: int) -> None:
        """Store one 64-bit word."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """A copy of some bytes."""
        ...

    def close(self) -> None:
        """Give it back."""
        ...


class FileMemory:
    """A tape's file, read by system calls.

    A file that is truncated while it is mapped ends every process that looks at the missing pages by SIGBUS, and no
    seal can be put on a file in `/dev/shm`. A read that finds nothing is only an error. Windows of many records keep
    it as fast as a mapping (see `TapeReader`); that a copy may be of different moments is what checksums are for.
    """

    def __init__(self, file: int, readonly: bool, where: str) -> None:
        """Read an open file, and close it in the end.

        Args:
            file: Its descriptor.
            readonly: Whether it was opened for reading only.
            where: The tape's path, for errors.
        """
        self.size = os.fstat(file).st_size
        self.readonly = readonly
        self._file = file
        self._where = where
        self._given_back = weakref.finalize(self, os.close, file)  # also where a reader is dropped without `close`
        self._given_back.atexit = False

    def __getitem__(self, word: int) -> int:
        """One 64-bit word.

        Raises:
            TapeError: The file has become too short.
        """
        value: int = _WORD.unpack(self.read(word << 3, 8))[0]
        return value

    def __setitem__(self, word: int, value: int) -> None:
        """Store one 64-bit word; an aligned one is stored as a whole.

        Raises:
            TapeError: The file cannot be written to.
        """
        try:
            os.pwrite(self._file, _WORD.pack(value), word << 3)
        except OSError as error:
            raise TapeError(f"{self._where}: cannot be written to: {error}") from error

    def read(self, offset: int, size: int) -> bytes:
        """A copy of some bytes.

        Raises:
            TapeError: The file has become too short, or cannot be read.
        """
        try:
            found = os.pread(self._file, size, offset)
        except OSError as error:
            raise TapeError(f"{self._where}: cannot be read: {error}") from error
        if len(found) != size:
            raise TapeError(f"{self._where}: truncated while it was read")
        return found

    def close(self) -> None:
        """Close the file."""
        self._given_back()
        self._file = -1


class OwnMemory:
    """The tape that this process writes, over its writer's mapping."""

    def __init__(self, data: memoryview) -> None:
        """Read `data`, which stays the writer's."""
        self.size = len(data)
        self.readonly = False
        self._data = data
        self._words = data.cast("Q")

    def __getitem__(self, word: int) -> int:
        """One 64-bit word."""
        return self._words[word]

    def __setitem__(self, word: int, value: int) -> None:
        """Store one 64-bit word."""
        self._words[word] = value

    def read(self, offset: int, size: int) -> bytes:
        """A copy of some bytes."""
        return bytes(self._data[offset : offset + size])

    def close(self) -> None:
        """Give the views back."""
        self._words.release()
        self._data.release()


def numbers_in(memory: TapeMemory, offset: int, records: int) -> list[int]:
    """The numbers of records that lie one behind the other from `offset` on."""
    found: list[int] = []
    for first in range(0, records, _RECORDS_AT_ONCE):
        count = min(records - first, _RECORDS_AT_ONCE)
        data = memory.read(offset + first * layout.RECORD_SIZE, count * layout.RECORD_SIZE)
        found += memoryview(data).cast("Q")[:: layout.RECORD_SIZE // 8].tolist()
    return found


_RECORDS_AT_ONCE = 4096
