"""An opened tape: its identity, its live words, its raw records, and its writer's liveness."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from otel_torchdist.errors import TapeError
from otel_torchdist.model.kinds import RunIdState, TapeState
from otel_torchdist.model.rank_state.rescue import Rescue
from otel_torchdist.system.files import others as others_files
from otel_torchdist.system.files.kept import move_up
from otel_torchdist.system.files.locks import holder_of, is_locked_elsewhere
from otel_torchdist.tape import layout, seals
from otel_torchdist.tape.identity import decode_identity
from otel_torchdist.tape.layout import MAX_NUMBER, LiveWord, clipped
from otel_torchdist.tape.live_words import ProfileRequest, asked_at_ns
from otel_torchdist.tape.memory import FileMemory, OwnMemory, TapeMemory, numbers_in
from otel_torchdist.tape.names.reader import NamesReader
from otel_torchdist.tape.status import TapeStatus

if TYPE_CHECKING:
    from typing_extensions import Self

    from otel_torchdist.tape.writer import TapeWriter

_FIRST_LIVE_WORD: Final = int(min(LiveWord))
_LIVE_WORDS: Final = struct.Struct(f"={int(max(LiveWord)) - _FIRST_LIVE_WORD + 1}Q")
_RECORD_HEAD: Final = struct.Struct("=QQ")
_WORDS: Final = struct.Struct(f"={layout.WORDS}Q")
_READS: Final = 3
"""Number of reads before a record counts as damaged: with weak memory ordering, its number may be visible first."""
_RUN_ID_READS: Final = 100
_E = TypeVar("_E", bound=IntEnum)


class MappedTape:
    """A tape, opened and checked.

    Attributes:
        path: The tape's file.
        owner: Id of the user who owns the file.
        identity: Identity of its writer.
        names: Its dictionary.
        words: Its memory.
    """

    def __init__(self, path: Path, owner: int | None = None) -> None:
        """Open a tape.

        Args:
            path: Its file, which must not be a tape that this process writes (see `locks`).
            owner: The user who must own it. If None, the owner of its directory or this process's user must.

        Raises:
            TapeError: The tape cannot be opened, or is truncated, damaged or of an unknown version.
        """
        self._writer: TapeWriter | None = None
        self._file, readonly = _open(path, owner)
        self.owner = os.fstat(self._file).st_uid
        memory = FileMemory(self._file, readonly, str(path))
        try:
            self._attach(path, memory)
        except TapeError:
            memory.close()
            raise

    @classmethod
    def of_writer(cls, writer: TapeWriter) -> Self:
        """Return a reader of the tape that this process writes, through the writer's mapping.

        A second descriptor of the file would be dangerous: closing it would release the lock that marks this process
        as alive.
        """
        reader = cls.__new__(cls)
        reader._writer = writer
        reader._file = -1
        reader.owner = os.geteuid()
        reader._attach(writer.path, OwnMemory(memoryview(writer.view())))
        return reader

    def another(self) -> Self:
        """Return a second reader, at the oldest record. It shares this reader's open file, so do not close it."""
        reader = type(self).__new__(type(self))
        reader._writer, reader._file, reader.owner = self._writer, self._file, self.owner
        reader._attach(self.path, self.words)
        return reader

    def _attach(self, path: Path, memory: TapeMemory) -> None:
        self.path = path
        self.identity = decode_identity(memory.read(0, min(memory.size, layout.IDENTITY_SIZE)), str(path))
        needed = layout.tape_size(self.identity.capacity)
        if memory.size != needed:
            raise TapeError(
                f"{path}: truncated or damaged: {memory.size} bytes, but a ring of {self.identity.capacity} records "
                f"needs {needed}"
            )
        self.names = NamesReader(path.with_suffix(".names"), self.owner)
        self.words = memory
        self.capacity = self.identity.capacity

    def close(self) -> None:
        """Close the file. Nothing can be read afterwards."""
        self.words.close()
        self._file = -1

    def status(self) -> TapeStatus:
        """Read the tape's live words.

        Raises:
            TapeError: A word is damaged.
        """
        run_id, run_id_state, words = self._run_id()
        heartbeat_ns = self._sealed(words, LiveWord.HEARTBEAT_US) * 1000
        asked = self._sealed(words, LiveWord.ASKED)
        return TapeStatus(
            run_id=run_id,
            run_id_state=run_id_state,
            step=self._sealed(words, LiveWord.STEP),
            heartbeat_ns=heartbeat_ns,
            monotonic_ns=heartbeat_ns,
            realtime_ns=heartbeat_ns + self._sealed(words, LiveWord.CLOCK_OFFSET_US) * 1000,
            records_dropped=clipped(_live(words, LiveWord.RECORDS_DROPPED)),
            names_dropped=clipped(_live(words, LiveWord.NAMES_DROPPED)),
            overhead_ns=clipped(_live(words, LiveWord.OVERHEAD_NS)),
            overhead_calls=clipped(_live(words, LiveWord.OVERHEAD_CALLS)),
            state=self._enum(TapeState, _live(words, LiveWord.STATE)),
            failure=self._sealed(words, LiveWord.FAILURE),
            request=_live(words, LiveWord.REQUEST),
            answer=_live(words, LiveWord.ANSWER),
            expects_until_ns=self._sealed(words, LiveWord.EXPECTED_UNTIL_US) * 1000,
            exported_by_rank=bool(self._sealed(words, LiveWord.EXPORTED_BY_RANK)),
            rescue=Rescue.decode(self._sealed(words, LiveWord.RESCUE)),
            asked_signal=asked >> layout.ASKED_TIME_BITS,
            asked_ns=asked_at_ns(asked, heartbeat_ns),
            rpc_worker=self._sealed(words, LiveWord.RPC_WORKER),
            rpc_threads=self._sealed(words, LiveWord.RPC_THREADS),
            backward_thread=self._sealed(words, LiveWord.BACKWARD_THREAD),
            backward_since_ns=self._sealed(words, LiveWord.BACKWARD_US) * 1000,
            future_thread=self._sealed(words, LiveWord.FUTURE_THREAD),
            future_since_ns=self._sealed(words, LiveWord.FUTURE_US) * 1000,
            switched_off_ns=self._sealed_if_known(words, LiveWord.SWITCHED_OFF_US) * 1000,
            recording_level=self._sealed_if_known(words, LiveWord.RECORDING_LEVEL),
        )

    def _sealed(self, words: tuple[int, ...], word: LiveWord) -> int:
        value = seals.unseal_live(word, _live(words, word))
        if value is None:
            raise TapeError(f"{self.path}: damaged: the live word {word.name} does not match its checksum")
        return value

    def _sealed_if_known(self, words: tuple[int, ...], word: LiveWord) -> int:
        """Return the value of a word that an earlier release does not write; 0 on a tape of such a release."""
        return self._sealed(words, word) if _live(words, word) else 0

    def _run_id(self) -> tuple[int, RunIdState, tuple[int, ...]]:
        """Return the run id, the state of the ranks' agreement on it, and all live words, from one read."""
        for _ in range(_RUN_ID_READS):  # the writer may be changing the run id
            words = _LIVE_WORDS.unpack(self.words.read(_FIRST_LIVE_WORD << 3, _LIVE_WORDS.size))
            word = _live(words, LiveWord.RUN_ID_STATE)
            run_id = _live(words, LiveWord.RUN_ID_HIGH) << 64 | _live(words, LiveWord.RUN_ID_LOW)
            if word == seals.run_id_seal(run_id, word & 0xFF):
                return run_id, self._enum(RunIdState, word & 0xFF), words
            if word == seals.run_id_seal(0, RunIdState.NONE):
                return 0, RunIdState.NONE, words
        raise TapeError(f"{self.path}: damaged: the run id does not match its checksum")

    def _enum(self, cls: type[_E], value: int) -> _E:
        try:
            return cls(value)
        except ValueError:
            raise TapeError(f"{self.path}: damaged: {value:#x} is not a {cls.__name__}") from None

    def is_alive(self) -> bool:
        """Return whether the writer holds its lock: its process exists and has not closed the tape."""
        if self._writer is not None:
            return not self._writer.closed
        return is_locked_elsewhere(self._file)

    def holder(self) -> int:
        """Return the pid of the process with the writer's lock; 0 if no process of this PID namespace holds it."""
        return os.getpid() if self._writer is not None else holder_of(self._file)

    def request_stacks(self) -> int:
        """Request the stacks of the writer's threads. Return the request's number; 0 if the tape is read-only."""
        if self.words.readonly:
            return 0
        request = (self.words[LiveWord.REQUEST] + 1) & layout.LIVE_VALUE_MASK
        self.words[LiveWord.REQUEST] = request
        return request

    def request_profile(self, seconds: float, rate: int) -> int:
        """Ask the writer to sample its stacks. Return the request's number.

        Returns 0 if the tape is read-only, or if the writer's version does not support profiles.
        """
        last = seals.unseal_live(LiveWord.PROFILE_REQUEST, self.words[LiveWord.PROFILE_REQUEST])
        if self.words.readonly or last is None:
            return 0
        request = ProfileRequest(ProfileRequest.decode(last).number + 1, seconds, rate)
        self.words[LiveWord.PROFILE_REQUEST] = seals.seal_live(LiveWord.PROFILE_REQUEST, request.encode())
        return request.number

    def has_answered_profile(self, request: int) -> bool:
        """Return whether the writer has finished the profile of a request."""
        return self.words[LiveWord.PROFILE_ANSWER] == request

    def record(self, number: int) -> bytes | None:
        """Return record `number` from the ring; None if it is missing or does not match its CRC."""
        return self._read(self._offset_of(number), number)

    def refuge(self) -> dict[int, int]:
        """Return the slots of the operations in the refuge, by number. The records are not checked yet."""
        numbers = numbers_in(self.words, layout.REFUGE_OFFSET, layout.REFUGE_SLOTS)
        return {number: slot for slot, number in enumerate(numbers) if number}

    def refuge_record(self, number: int, slot: int) -> bytes | None:
        """Return an operation's record from a slot of the refuge; None if it is missing or does not match its CRC."""
        return self._read(layout.REFUGE_OFFSET + slot * layout.RECORD_SIZE, number)

    def number_in_slot(self, number: int) -> int:
        """Return the number of the record now in the slot of record `number`."""
        return self.words[self._offset_of(number) >> 3]

    def ring_words(self, number: int) -> Sequence[int] | None:
        """Return the current words of a record in the ring; None if its slot has been reused."""
        data = self.words.read(self._offset_of(number), layout.RECORD_SIZE)
        if number_of(data) != number:
            return None
        words = words_of(data)
        # The copy is not atomic: another record's words may have been stored meanwhile.
        return words if not any(words) or self.number_in_slot(number) == number else None

    def _offset_of(self, number: int) -> int:
        return layout.RING_OFFSET + (number % self.capacity) * layout.RECORD_SIZE

    def _read(self, offset: int, number: int) -> bytes | None:
        for _ in range(_READS):
            data = self.words.read(offset, layout.RECORD_SIZE)
            if number_of(data) != number:
                return None
            if is_whole(data, number):
                return data
        return None


def number_of(record: bytes, offset: int = 0) -> int:
    """Return the number of a raw record."""
    return _RECORD_HEAD.unpack_from(record, offset)[0]


def words_of(record: bytes) -> Sequence[int]:
    """Return the words of a raw record."""
    return _WORDS.unpack_from(record, layout.WORDS_OFFSET)


def is_whole(record: bytes, number: int) -> bool:
    """Return whether the content of a slot is record `number`, not a mix of two records.

    The CRC covers number and payload, so a copy of a slot during its overwrite does not pass.
    """
    stored_number, checksum = _RECORD_HEAD.unpack_from(record)
    payload = record[layout.PAYLOAD_OFFSET : layout.WORDS_OFFSET]
    return stored_number == number <= MAX_NUMBER and checksum == seals.payload_checksum(number, payload)


def _live(words: tuple[int, ...], word: LiveWord) -> int:
    return words[word - _FIRST_LIVE_WORD]


def _open(path: Path, owner: int | None) -> tuple[int, bool]:
    """Open a tape's file, also for writing if permitted. Return the descriptor and whether it is read-only.

    Raises:
        TapeError: The file cannot be opened, or belongs to another user.
    """
    readonly = not os.access(path, os.W_OK)
    try:
        permitted_owner = path.parent.stat().st_uid if owner is None else owner
        file = move_up(others_files.open_regular(path, permitted_owner, writable=not readonly))
    except OSError as error:
        raise TapeError(f"{path}: cannot be opened: {others_files.reason(error)}") from error
    file_owner = os.fstat(file).st_uid
    if owner in (None, file_owner):
        return file, readonly
    os.close(file)
    raise TapeError(f"{path}: cannot be opened: it belongs to user {file_owner} and not to user {owner}")
