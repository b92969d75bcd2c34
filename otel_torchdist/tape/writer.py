"""The writing side of a tape. `begin`, `mark` and `complete` are on the hot path of every collective."""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from otel_torchdist.errors import TapeError
from otel_torchdist.model.kinds import How, RecordKind
from otel_torchdist.model.names import MAX_BYTES
from otel_torchdist.system.files.locks import shared_lock
from otel_torchdist.tape import layout, seals
from otel_torchdist.tape.figures import FigureWords
from otel_torchdist.tape.identity import TapeIdentity, encode_identity
from otel_torchdist.tape.layout import LiveWord, Word
from otel_torchdist.tape.live_words import LiveWords
from otel_torchdist.tape.names.writer import NamesWriter
from otel_torchdist.tape.refuge import Refuge
from otel_torchdist.tape.writer_file import LifeLock, map_shared

_RECORD_WORDS: Final = layout.RECORD_SIZE // 8
_RING_WORD: Final = layout.RING_OFFSET // 8
_REFUGE_WORD: Final = layout.REFUGE_OFFSET // 8
_WORDS_WORD: Final = layout.WORDS_OFFSET // 8
_ENTERED_WORD: Final = 2
_COMPLETED_WORD: Final = _WORDS_WORD + int(Word.COMPLETED)
_MAX_DURATION_NS: Final = layout.MAX_DURATION_NS
_SEARCHED: Final = 64
"""Number of newest records that `find_record_entered_at` searches."""

# Globals for the hot path of every collective: attributes of a module or an enum cost more.
_RING_OFFSET: Final = layout.RING_OFFSET
_RECORD_SIZE: Final = layout.RECORD_SIZE
_NEXT_NUMBER: Final = int(LiveWord.NEXT_NUMBER)
_CHECK_MODULUS: Final = layout.CHECK_MODULUS
_CRC_MODULUS: Final = layout.CRC_MODULUS
_EMPTY_WORDS: Final = layout.EMPTY_WORDS
_pack = layout.PAYLOAD.pack
_pack_head = layout.PAYLOAD_HEAD.pack
_pack_after_number = struct.Struct(f"=Q{layout.PAYLOAD.size}s{8 * layout.WORDS}s").pack_into
_crc32 = zlib.crc32


class TapeWriter(Refuge, LiveWords, FigureWords):
    """Writes one rank's tape.

    Thread-safe under the GIL: numbers come from an atomic counter, each thread writes its own record, and a lock is
    taken only when an open operation is about to be overwritten. If other threads write a whole lap of the ring
    while a thread is inside `begin` or `mark`, the record in its slot may be corrupted. Readers detect it and count it
    as lost.
    """

    def __init__(self, directory: Path, identity: TapeIdentity, names_bytes: int = MAX_BYTES) -> None:
        """Create `<nonce>.tape` and its dictionary in `directory`, and take the lock that marks it as alive.

        Args:
            directory: Directory of tapes.
            identity: Identity of the tape.
            names_bytes: Upper bound on the bytes of the dictionary.

        Raises:
            TapeError: The file system is full, the files cannot be created, or the identity is invalid.
        """
        if not layout.is_ring_capacity(identity.capacity):
            raise TapeError(f"cannot create a tape in {directory}: a ring cannot hold {identity.capacity} records")
        self.identity = identity
        self.path = directory / f"{identity.nonce:016x}.tape"
        self._capacity = identity.capacity
        self._process = os.getpid()
        self._numbers = itertools.count(1)
        self._create_refuge()
        self.closed = False
        with shared_lock(directory):
            self._create(names_bytes)

    def _create(self, names_bytes: int) -> None:
        """Create the files. The tape is renamed once it is complete and locked: no reader sees a partial tape."""
        size = layout.tape_size(self._capacity)
        names_path = self.path.with_suffix(".names")
        hidden = self.path.with_name(f".{self.path.stem}.new")
        with contextlib.ExitStack() as undo:
            try:
                header = encode_identity(self.identity)
                self._lock = LifeLock(hidden, self.path)
                undo.callback(self._lock.close)
                undo.callback(hidden.unlink)
                # With `ftruncate` alone, a store to a page that a full /dev/shm cannot provide would raise SIGBUS.
                os.posix_fallocate(self._lock.fileno(), 0, size)
                self._bytes = memoryview(map_shared(self._lock.fileno(), size))
                self.names = NamesWriter(names_path, names_bytes)
                undo.callback(self.names.close)
                undo.callback(names_path.unlink)
                self._bytes[: layout.IDENTITY_SIZE] = header
                self._words = self._bytes.cast("Q")
                self.begin_live_words()
                self._lock.take()
                hidden.rename(self.path)
            except (OSError, struct.error) as error:
                raise TapeError(f"cannot create a tape of {size} bytes in {self.path.parent}: {error}") from error
            undo.pop_all()

    def begin(
        self, entered_ns: int, step: int, sequence: int, message_bytes: int, group: int, signature: int,
        call_site: int, label: int, peer: int, tag: int, thread: int, kind: int, flags: int, phase: int = 0,
        caller: int = 0,
    ) -> int:  # fmt: skip
        """Publish an operation as entered. Return its number for `mark` and `complete`.

        The arguments are as in `Operation`, except that the label is `label_word`. Values must fit their fields.

        Raises:
            struct.error: A value does not fit its field. Nothing has been written.
        """
        tail = self.prepare(
            message_bytes, group, signature, call_site, label, peer, tag, thread, kind, flags, phase, caller
        )
        return self.begin_prepared(entered_ns, step, sequence, tail)

    @staticmethod
    def prepare(
        message_bytes: int, group: int, signature: int, call_site: int, label: int, peer: int, tag: int, thread: int,
        kind: int, flags: int, phase: int = 0, caller: int = 0,
    ) -> bytes:  # fmt: skip
        """Pack the fields shared by the operations of a call site, for any number of calls to `begin_prepared`.

        Raises:
            struct.error: A value does not fit its field.
        """
        return layout.PAYLOAD_TAIL.pack(
            message_bytes, group, signature, call_site, label, peer, tag, thread, kind, flags, phase, caller
        )

    def begin_prepared(self, entered_ns: int, step: int, sequence: int, tail: bytes) -> int:
        """Publish an operation as `begin` does, with the other arguments packed by `prepare`.

        Raises:
            struct.error: A value does not fit its field. Nothing has been written.
        """
        number = self._append(_pack_head(entered_ns, step, sequence) + tail, _EMPTY_WORDS)
        self._open[number] = 0
        return number

    def _append(self, payload: bytes, record_words: bytes) -> int:
        """Publish a record under the next number. Once the number is drawn, no step may fail.

        A signal handler may still raise, after any call. Then the record is published as abandoned, because readers
        would wait for the missing number.
        """
        number = 0
        for number in self._numbers:  # noqa: B007  # not next(): after a call a signal handler could lose it
            break
        try:
            lapped = number - self._capacity
            if lapped in self._open:
                self._move_to_refuge(lapped)
            offset = _RING_OFFSET + (number % self._capacity) * _RECORD_SIZE
            word = offset >> 3
            words = self._words
            words[word] = 0
            _pack_after_number(self._bytes, offset + 8, _crc32(payload, number % _CRC_MODULUS), payload, record_words)
            words[word] = number
            words[_NEXT_NUMBER] = number + 1
        except BaseException:
            self._publish_abandoned(number, payload, record_words)
            raise
        return number

    def _publish_abandoned(self, number: int, payload: bytes, record_words: bytes) -> None:
        if record_words == _EMPTY_WORDS:
            record_words = seals.abandoned_words(number)
        offset = _RING_OFFSET + (number % self._capacity) * _RECORD_SIZE
        self._words[offset >> 3] = 0
        _pack_after_number(self._bytes, offset + 8, _crc32(payload, number % _CRC_MODULUS), payload, record_words)
        self._words[offset >> 3] = number
        self._words[_NEXT_NUMBER] = max(self._words[_NEXT_NUMBER], number + 1)

    def find_record_entered_at(self, entered_ns: int) -> int:
        """Return the number of the open operation entered at a given time; 0 if none of the newest records matches.

        A signal handler may interrupt a caller after `begin` has published the operation, but before the caller has
        its number. Python 3.10 runs handlers after each call, newer versions only after calls that leave the
        interpreter's current C frame.
        """
        words = self._words
        newest = words[_NEXT_NUMBER] - 1
        for number in range(newest, max(newest - _SEARCHED, 0), -1):
            word = _RING_WORD + (number % self._capacity) * _RECORD_WORDS
            record = words[word], words[word + _ENTERED_WORD], words[word + _COMPLETED_WORD]
            if record == (number, entered_ns, 0):
                self._open.setdefault(number, 0)
                return number
        return 0

    def mark(self, number: int, index: int, elapsed_ns: int, how: int) -> None:
        """Store one of a record's words, usually a time after its entry.

        If the record's slot has been reused, the word goes to its copy in the refuge, if any.

        Args:
            number: The record's number.
            index: Index of the word: a `Word`, `ActivityWord` or `NumericsWord`.
            elapsed_ns: The time since the entry, clipped to 78 hours, or another value; see `seals.seal`.
            how: A `How`.
        """
        word = _RING_WORD + (number % self._capacity) * _RECORD_WORDS
        words = self._words
        if words[word] != number:
            self._mark_in_refuge(number, index, elapsed_ns, how)
            return
        content = (elapsed_ns << 4) | how
        try:
            words[word + _WORDS_WORD + index] = (content << 12) | ((content + number) % _CHECK_MODULUS)
        except ValueError:  # the time does not fit
            words[word + _WORDS_WORD + index] = seals.seal(number, elapsed_ns, how)

    def clear(self, number: int, index: int) -> None:
        """Clear a word stored by `mark`."""
        word = _RING_WORD + (number % self._capacity) * _RECORD_WORDS
        if self._words[word] == number:
            self._words[word + _WORDS_WORD + index] = 0
            return
        self._clear_in_refuge(number, index)

    def complete(self, number: int, entered_ns: int, ended_ns: int, how: int, failure: int = 0) -> bool:
        """Record the end of an operation. Return whether this call recorded it: only the first call does.

        Args:
            number: The number returned by `begin`.
            entered_ns: The time passed to `begin`.
            ended_ns: Time of the end.
            how: A `How`.
            failure: Name id of the exception's type; 0 for none.
        """
        elapsed = ended_ns - entered_ns
        try:
            location = self._open.pop(number, None)
            word = _RING_WORD + (number % self._capacity) * _RECORD_WORDS
            words = self._words
            if location == 0 and not failure and words[word] == number and 0 < elapsed < _MAX_DURATION_NS:
                content = (elapsed << 4) | how  # the common case
                words[word + _COMPLETED_WORD] = (content << 12) | ((content + number) % _CHECK_MODULUS)
                return True
            return self._complete_uncommon(number, location, entered_ns, max(elapsed, 1), how, failure)
        except BaseException:  # a signal handler has raised
            self._complete_interrupted(number, entered_ns, max(elapsed, 1), how)
            raise

    def _complete_uncommon(
        self, number: int, location: int | None, entered_ns: int, elapsed: int, how: int, failure: int
    ) -> bool:
        if location is None:
            with self._lap_lock:  # another thread may be moving the record to the refuge
                location = self._open.pop(number, None)
            if location is None:
                return False
        if location:
            self._complete_late(number, location, entered_ns, elapsed, how, failure)
            return True
        if failure:
            self.mark(number, Word.FAILURE, failure, How.FAILED)
        self.mark(number, Word.COMPLETED, elapsed, how)
        return True

    def _complete_interrupted(self, number: int, entered_ns: int, elapsed: int, how: int) -> None:
        """Complete a record whose completion was interrupted, whether or not it is still marked as open."""
        self._open.pop(number, None)
        word = _RING_WORD + (number % self._capacity) * _RECORD_WORDS
        if self._words[word] == number:
            if not self._words[word + _COMPLETED_WORD]:
                self.mark(number, Word.COMPLETED, elapsed, how)
            return
        for slot in range(layout.REFUGE_SLOTS):
            if self._words[_REFUGE_WORD + slot * _RECORD_WORDS] == number:
                self._complete_late(number, slot + 1, entered_ns, elapsed, how, 0)
                return

    def _complete_late(self, number: int, location: int, entered_ns: int, elapsed: int, how: int, failure: int) -> None:
        """Write a separate completion record for an operation that has left the ring, with a copy of its words."""
        record_words = _EMPTY_WORDS
        if location > 0:
            offset = layout.REFUGE_OFFSET + (location - 1) * _RECORD_SIZE
            record_words = bytes(self._bytes[offset + layout.WORDS_OFFSET : offset + _RECORD_SIZE])
        fields = (entered_ns, 0, number, elapsed, 0, failure, 0, 0, how, 0, 0, RecordKind.LATE_COMPLETION, 0, 0, 0)
        self._append(_pack(*fields), record_words)
        if location > 0:
            self._release_refuge_slot(location)

    def step_ended(
        self, step: int, ended_ns: int, sequence: int, skipped: bool = False, scale: float | None = None
    ) -> None:
        """Record the end of `step` and the start of the next step. The arguments are as in `StepMark`."""
        if os.getpid() != self._process:
            return  # a child forked by C code, which does not run Python's fork hooks
        bits = layout.float_bits(scale or 0.0)
        fields = (ended_ns, step, sequence, 0, bits, 0, 0, 0, -1, 0, 0, RecordKind.STEP, int(skipped), 0, 0)
        self._append(_pack(*fields), _EMPTY_WORDS)
        self._words[LiveWord.STEP] = seals.seal_live(LiveWord.STEP, step + 1)

    def write_splits(self, payloads: Iterable[bytes]) -> None:
        """Write the splits of an `all_to_all`, packed by `pack_splits`. The operation's record must come next."""
        for payload in payloads:
            self._append(payload, _EMPTY_WORDS)

    def write_numerics(self, payload: bytes, words: Mapping[int, int]) -> int:
        """Write the numerics of an operation's inputs. The operation's record must come next on the calling thread.

        Args:
            payload: The payload packed by `pack_numerics`.
            words: Values of the words known so far, by index.

        Returns:
            The record's number, for `mark` once the outputs are known.
        """
        number = self._append(payload, _EMPTY_WORDS)
        for index, value in words.items():
            self.mark(number, index, value, How.CALL)
        return number

    def view(self) -> memoryview:
        """Return the mapped bytes for a reader in this process, which must not open the file (see `locks`)."""
        return self._bytes

    def next_number(self) -> int:
        """Return the number of the next record."""
        return self._words[_NEXT_NUMBER]

    def open_numbers(self) -> list[int]:
        """Return the numbers of the open operations."""
        return list(self._open)

    def keep_files(self) -> None:
        """Reopen files that the program has closed, and retake the lock. Called once a second."""
        self._lock.retake()

    def close(self) -> None:
        """Release the lock. The mapping stays until its last reference is gone, so late callers cannot crash."""
        if self.closed:
            return
        self.closed = True
        self.names.close()
        self._lock.close()
