"""One tape in memory: who writes it, its live words, its raw records, whether its writer lives."""

from __future__ import annotations

import mmap
import os
import stat
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from otel_torchdist.tape import layout
from otel_torchdist.tape.identity import decode_identity
from otel_torchdist.tape.layout import LiveWord, RunIdState, TapeState
from otel_torchdist.tape.locks import is_locked_elsewhere
from otel_torchdist.tape.names import NamesReader
from otel_torchdist.tape.records import TapeError, TapeStatus

if TYPE_CHECKING:
    from typing_extensions import Self

    from otel_torchdist.tape.writer import TapeWriter

RECORD_WORDS: Final = layout.RECORD_SIZE // 8
RING_WORD: Final = layout.RING_OFFSET // 8
REFUGE_WORD: Final = layout.REFUGE_OFFSET // 8

_LOOKS: Final = 3
"""Where memory is weakly ordered a record's number may be seen before the rest: not damaged before this many looks."""
_RUN_ID_LOOKS: Final = 100
_E = TypeVar("_E", bound=IntEnum)


class MappedTape:
    """A tape's file, mapped and checked.

    Attributes:
        path: The tape's file.
        identity: Who writes it.
        names: Its dictionary.
    """

    def __init__(self, path: Path) -> None:
        """Open and map the tape at `path`, which must not be a tape that this process writes (see `locks`).

        Raises:
            TapeError: It cannot be opened, or is truncated, damaged or of an unknown version.
        """
        self._writer: TapeWriter | None = None
        self._file, data = _open(path)
        try:
            self._follow(path, data)
        except TapeError:
            data.release()
            os.close(self._file)
            raise

    @classmethod
    def of_writer(cls, writer: TapeWriter) -> Self:
        """Read the tape that this process writes, over the writer's own mapping.

        Opening the file a second time and closing it would drop the lock that says this process lives.
        """
        reader = cls.__new__(cls)
        reader._writer = writer
        reader._file = -1
        reader._follow(writer.path, memoryview(writer.view()))
        return reader

    def _follow(self, path: Path, data: memoryview) -> None:
        self.path = path
        self.identity = decode_identity(data, str(path))
        needed = layout.tape_size(self.identity.capacity)
        if len(data) != needed:
            raise TapeError(
                f"{path}: truncated or damaged: {len(data)} bytes, but a ring of {self.identity.capacity} records "
                f"needs {needed}"
            )
        self.names = NamesReader(path.with_suffix(".names"))
        self.data = data
        self.words = data.cast("Q")
        self.capacity = self.identity.capacity

    def close(self) -> None:
        """Give file and mapping back; nothing can be read any more."""
        self.words.release()
        self.data.release()
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def status(self) -> TapeStatus:
        """The tape's live words.

        Raises:
            TapeError: A word cannot be what its writer wrote.
        """
        words = self.words
        run_id, run_id_state = self._run_id()
        heartbeat_ns = self._sealed(LiveWord.HEARTBEAT_US) * 1000
        return TapeStatus(
            run_id=run_id,
            run_id_state=run_id_state,
            step=self._sealed(LiveWord.STEP),
            heartbeat_ns=heartbeat_ns,
            monotonic_ns=heartbeat_ns,
            realtime_ns=heartbeat_ns + self._sealed(LiveWord.CLOCK_OFFSET_US) * 1000,
            records_dropped=words[LiveWord.RECORDS_DROPPED],
            names_dropped=words[LiveWord.NAMES_DROPPED],
            overhead_ns=words[LiveWord.OVERHEAD_NS],
            overhead_calls=words[LiveWord.OVERHEAD_CALLS],
            state=self._enum(TapeState, words[LiveWord.STATE]),
            failure=self._sealed(LiveWord.FAILURE),
            request=words[LiveWord.REQUEST],
            answer=words[LiveWord.ANSWER],
            expects_until_ns=self._sealed(LiveWord.EXPECTED_UNTIL_US) * 1000,
        )

    def _sealed(self, word: LiveWord) -> int:
        value = layout.unseal_live(word, self.words[word])
        if value is None:
            raise TapeError(f"{self.path}: damaged: the live word {word.name} does not match its checksum")
        return value

    def _run_id(self) -> tuple[int, RunIdState]:
        words = self.words
        for _ in range(_RUN_ID_LOOKS):  # the writer may be in the middle of publishing it
            word = words[LiveWord.RUN_ID_STATE]
            run_id = words[LiveWord.RUN_ID_HIGH] << 64 | words[LiveWord.RUN_ID_LOW]
            if word == layout.run_id_seal(run_id, word & 0xFF):
                return run_id, self._enum(RunIdState, word & 0xFF)
            if word == layout.run_id_seal(0, RunIdState.NONE):
                return 0, RunIdState.NONE
        raise TapeError(f"{self.path}: damaged: the run id does not match its checksum")

    def _enum(self, cls: type[_E], value: int) -> _E:
        try:
            return cls(value)
        except ValueError:
            raise TapeError(f"{self.path}: damaged: {value:#x} is not a {cls.__name__}") from None

    def is_alive(self) -> bool:
        """Whether the writer's process exists and has not closed the tape: its lock is held."""
        if self._writer is not None:
            return not self._writer.closed
        return is_locked_elsewhere(self._file)

    def request_stacks(self) -> int:
        """Ask the writer's own thread for the stacks of its threads; returns the request's number.

        Returns 0 when the tape cannot be written to.
        """
        if self.data.readonly:
            return 0
        request = (self.words[LiveWord.REQUEST] + 1) & layout.LIVE_VALUE_MASK
        self.words[LiveWord.REQUEST] = request
        return request

    def record(self, number: int) -> bytes | None:
        """Record `number` as it lies in the ring, or None when it is not there or does not match its CRC."""
        return self._read(layout.RING_OFFSET + (number % self.capacity) * layout.RECORD_SIZE, number)

    def refuge(self) -> dict[int, int]:
        """Which open operation lies in which slot of the refuge; what lies there must still be checked."""
        end = REFUGE_WORD + layout.REFUGE_SLOTS * RECORD_WORDS
        numbers = self.words[REFUGE_WORD:end:RECORD_WORDS].tolist()
        return {number: slot for slot, number in enumerate(numbers) if number}

    def refuge_record(self, number: int, slot: int) -> bytes | None:
        """The same as `record` for an operation in a slot of the refuge."""
        return self._read(layout.REFUGE_OFFSET + slot * layout.RECORD_SIZE, number)

    def _read(self, offset: int, number: int) -> bytes | None:
        word = offset >> 3
        for _ in range(_LOOKS):
            if self.words[word] != number:
                return None
            checksum = self.words[word + 1]
            data = bytes(self.data[offset : offset + layout.RECORD_SIZE])
            if self.words[word] != number:
                return None
            payload = data[layout.PAYLOAD_OFFSET : layout.WORDS_OFFSET]
            if checksum == layout.payload_checksum(number, payload):
                return data
        return None


def _open(path: Path) -> tuple[int, memoryview]:
    """Open and map a file, for reading and writing if that is allowed.

    Raises:
        TapeError: It cannot be opened or mapped.
    """
    writable = os.access(path, os.W_OK)
    file = -1
    try:
        # Without O_NONBLOCK the open of a named pipe would wait for its other end.
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK
        file = os.open(path, flags)
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError("not a regular file")
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return file, memoryview(mmap.mmap(file, facts.st_size, access=access) if facts.st_size else b"")
    except (OSError, ValueError) as error:  # ValueError: it shrank before it was mapped
        if file >= 0:
            os.close(file)
        raise TapeError(f"{path}: cannot be opened: {error}") from error
