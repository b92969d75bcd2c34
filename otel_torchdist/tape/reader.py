"""The reading side of a tape: follows the ring, keeps track of what is open, counts what it could not read."""

from __future__ import annotations

import dataclasses
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otel_torchdist.tape import layout
from otel_torchdist.tape.abandoned import AbandonedCalls
from otel_torchdist.tape.layout import Flag, How, LiveWord, RecordKind
from otel_torchdist.tape.mapped import RECORD_WORDS, RING_WORD, MappedTape
from otel_torchdist.tape.records import Operation, StepMark

UNCOMMITTED_BOUND_S: Final = 1.0
"""A number that was reserved and not committed for this long belongs to a thread that died in between."""

_WORDS: Final = struct.Struct(f"={layout.WORDS}Q")


@dataclass(slots=True)
class Batch:
    """What one poll found, in the order of the tape.

    Attributes:
        entered: Operations met for the first time.
        ended: Operations whose end became known, as they are now.
        steps: Steps that ended.
        lost: Records that were overwritten, damaged or never committed, and ends that were missed.
    """

    entered: list[Operation] = field(default_factory=list[Operation])
    ended: list[Operation] = field(default_factory=list[Operation])
    steps: list[StepMark] = field(default_factory=list[StepMark])
    lost: int = 0


@dataclass(frozen=True, slots=True)
class TapeCursor:
    """How far a reader has come, for another one that goes on from there.

    Attributes:
        next_number: The first record that was not read.
        open: Operations that had not ended.
        lost: As `TapeReader.lost`.
    """

    next_number: int
    open: tuple[Operation, ...]
    lost: int


class TapeReader(MappedTape):
    """Follows one tape. Not thread-safe; any number of readers may follow the same tape.

    Attributes:
        lost: Records lost since this reader was opened.
    """

    def _follow(self, path: Path, data: memoryview) -> None:
        super()._follow(path, data)
        self.lost = 0
        self._next = 1
        self._gap_since: float | None = None
        self._missing: set[int] = set()
        self._abandoned = AbandonedCalls()
        self._open: dict[int, Operation] = {}

    @property
    def cursor(self) -> TapeCursor:
        """How far this reader has come."""
        return TapeCursor(self._next, tuple(self.open_operations()), self.lost)

    def resume(self, cursor: TapeCursor) -> None:
        """Go on where another reader of this tape stood, instead of at the oldest record."""
        self._next = cursor.next_number
        self._open = {operation.number: operation for operation in cursor.open}
        self.lost = cursor.lost

    def read_before(self, cursor: TapeCursor) -> Batch:
        """Read what another reader of this tape had read, as far as the ring still holds it; nothing is lost here."""
        past = Batch()
        while self._next < cursor.next_number:
            before = self._next
            found = self.poll(cursor.next_number - before)
            past.entered += found.entered
            past.ended += found.ended
            past.steps += found.steps
            if self._next == before:
                break  # a gap that has not been given up yet
        still_open = {operation.number for operation in cursor.open}
        end = cursor.next_number  # a lapped reader may have gone beyond
        past.entered = [operation for operation in past.entered if operation.number < end]
        past.ended = [one for one in past.ended if one.number < end and one.number not in still_open]
        past.steps = [mark for mark in past.steps if mark.number < end]
        return past

    def open_operations(self) -> list[Operation]:
        """Operations that had not ended at the last poll, oldest first."""
        return [self._open[number] for number in sorted(self._open)]

    def poll(self, limit: int = 50_000) -> Batch:
        """Read what is new, at most `limit` records, and look again at everything that is open."""
        batch = Batch()
        caught_up = self._read_new(batch, limit)
        self._look_at_open(batch, caught_up)
        for ended in self._abandoned.among(self._open.values()):
            del self._open[ended.number]
            batch.ended.append(ended)
        self.lost += batch.lost
        return batch

    def _read_new(self, batch: Batch, limit: int) -> bool:
        """Read committed records in order; returns whether the end of the tape was reached."""
        for _ in range(limit):
            seen = self.words[self._word_of(self._next)]
            if seen == self._next:
                if self._read_record(batch):
                    self._advance()
                continue  # if not, it was overwritten while it was read: the next look finds the later number
            newest = self._newest(seen)
            if newest < self._next:
                self._gap_since = None
                return True
            if newest >= self._next + self.capacity:
                self._skip_lapped(batch, newest)
                continue
            if not self._gap_is_final():
                return False
            if self.words[self._word_of(self._next)] != self._next:
                batch.lost += 1
                self._advance()
        return False

    def _word_of(self, number: int) -> int:
        return RING_WORD + (number % self.capacity) * RECORD_WORDS

    def _advance(self) -> None:
        self._next += 1
        self._gap_since = None

    def _newest(self, seen: int) -> int:
        """The newest committed number, given what lies in the slot of the next one.

        The live word is a hint, believed for less than a lap; beyond that only what lies whole in the ring counts.
        """
        hint = self.words[LiveWord.NEXT_NUMBER] - 1
        near = hint < self._next + self.capacity
        if near and seen < self._next:
            return hint
        if hint >= seen and self.record(hint) is not None:
            return hint
        numbers = self.words[RING_WORD::RECORD_WORDS].tolist()
        whole = (number for number in sorted(numbers, reverse=True) if self.record(number) is not None)
        return max(next(whole, 0), hint if near else 0)

    def _skip_lapped(self, batch: Batch, newest: int) -> None:
        """Go on a little ahead of the oldest record, which is the next to be overwritten.

        Of what was overwritten the refuge still has what is open: the one operation that hangs.
        """
        resume = newest - self.capacity + 1 + self.capacity // 16
        saved = [
            operation
            for number, slot in sorted(self.refuge().items())
            if self._next <= number < resume
            and (operation := _decoded(number, self.refuge_record(number, slot))) is not None
        ]
        batch.entered += saved
        self._open |= {operation.number: operation for operation in saved}
        batch.lost += resume - self._next - len(saved)
        self._next = resume
        self._gap_since = None

    def _gap_is_final(self) -> bool:
        now = time.monotonic()
        if self._gap_since is None:
            self._gap_since = now
        return now - self._gap_since > UNCOMMITTED_BOUND_S or not self.is_alive()

    def _read_record(self, batch: Batch) -> bool:
        number = self._next
        data = self.record(number)
        if data is None:
            if self.words[self._word_of(number)] != number:
                return False
            batch.lost += 1
            return True
        try:
            self._take(number, data, batch)
        except ValueError:  # a kind that this version does not have
            batch.lost += 1
        return True

    def _take(self, number: int, data: bytes, batch: Batch) -> None:
        fields = layout.PAYLOAD.unpack_from(data, layout.PAYLOAD_OFFSET)
        kind = RecordKind(fields[11])
        if kind is RecordKind.STEP:
            batch.steps.append(StepMark(number, fields[0], fields[1], fields[2]))
            return
        if kind is RecordKind.LATE_COMPLETION:
            self._take_late(fields, data, batch)
            return
        operation = _operation(number, fields)
        batch.entered.append(operation)
        self._open[number] = operation
        self._abandoned.entered(operation)

    def _take_late(self, fields: tuple[int, ...], data: bytes, batch: Batch) -> None:
        entered, _, original, elapsed, _, failure, _, _, how = fields[:9]
        operation = self._open.pop(original, None)
        self._missing.discard(original)
        if operation is None:
            batch.lost += 1
            return
        known = _renewed(operation, _WORDS.unpack_from(data, layout.WORDS_OFFSET)) or operation
        ended = dataclasses.replace(known, completed_ns=entered + elapsed, how=How(how), failure=failure)
        batch.ended.append(ended)

    def _look_at_open(self, batch: Batch, caught_up: bool) -> None:
        refuge: dict[int, int] | None = None
        for number, operation in list(self._open.items()):
            words = self._ring_words(number)
            if words is None:
                refuge = self.refuge() if refuge is None else refuge
                words = self._refuge_words(number, refuge)
            if words is None:
                self._vanish(number, batch, caught_up)
                continue
            self._missing.discard(number)
            if any(words):
                self._renew(operation, words, batch)

    def _ring_words(self, number: int) -> Sequence[int] | None:
        """An operation's words as they are now, or None when its slot has been taken over."""
        word = self._word_of(number)
        if self.words[word] != number:
            return None
        first = word + layout.WORDS_OFFSET // 8
        words = self.words[first : first + layout.WORDS].tolist()
        return words if self.words[word] == number else None

    def _refuge_words(self, number: int, refuge: dict[int, int]) -> Sequence[int] | None:
        slot = refuge.get(number)
        record = None if slot is None else self.refuge_record(number, slot)
        return None if record is None else _WORDS.unpack_from(record, layout.WORDS_OFFSET)

    def _renew(self, operation: Operation, words: Sequence[int], batch: Batch) -> None:
        current = _renewed(operation, words)
        if current is not None and current.is_open:
            self._open[operation.number] = current
            return
        del self._open[operation.number]
        if current is None:
            batch.lost += 1
        else:
            batch.ended.append(current)

    def _vanish(self, number: int, batch: Batch, caught_up: bool) -> None:
        """Neither in the ring nor in the refuge: its late completion may still be ahead of us, but only once."""
        if not caught_up or number not in self._missing:
            self._missing.add(number)
            return
        self._missing.discard(number)
        del self._open[number]
        batch.lost += 1


def _renewed(operation: Operation, words: Sequence[int]) -> Operation | None:
    """The operation with what its words say; None when one of them is damaged, so that nobody knows if it ended."""
    known = [layout.unseal(operation.number, word) if word else None for word in words]
    if known.count(None) != words.count(0):
        return None
    returned, wait_entered, wait_returned, started, completed, failure = known  # as in `layout.Word`
    entered_ns = operation.entered_ns
    # That a wait has given up is taken back when the next one begins.
    still_waits = None if wait_entered else operation.wait_returned_ns
    # Field by field: `dataclasses.replace` took a quarter of the time of a poll.
    return Operation(
        number=operation.number,
        kind=operation.kind,
        entered_ns=entered_ns,
        step=operation.step,
        sequence=operation.sequence,
        message_bytes=operation.message_bytes,
        group=operation.group,
        signature=operation.signature,
        call_site=operation.call_site,
        label=operation.label,
        peer=operation.peer,
        tag=operation.tag,
        thread=operation.thread,
        flags=operation.flags,
        returned_ns=entered_ns + returned[0] if returned else operation.returned_ns,
        wait_entered_ns=entered_ns + wait_entered[0] if wait_entered else operation.wait_entered_ns,
        wait_returned_ns=entered_ns + wait_returned[0] if wait_returned else still_waits,
        started_ns=entered_ns + started[0] if started else operation.started_ns,
        completed_ns=entered_ns + completed[0] if completed else operation.completed_ns,
        how=completed[1] if completed else operation.how,
        failure=failure[0] if failure else operation.failure,
        started_how=started[1] if started else operation.started_how,
    )


def _decoded(number: int, record: bytes | None) -> Operation | None:
    """The operation in a record, or None when there is no record."""
    return None if record is None else _operation(number, layout.PAYLOAD.unpack_from(record, layout.PAYLOAD_OFFSET))


def _operation(number: int, fields: tuple[int, ...]) -> Operation:
    entered, step, sequence, size, group, signature, call_site, label, peer, tag, thread, kind, flags = fields[:13]
    return Operation(
        number=number,
        kind=RecordKind(kind),
        entered_ns=entered,
        step=step,
        sequence=sequence,
        message_bytes=size,
        group=group,
        signature=signature,
        call_site=call_site,
        label=label,
        peer=peer,
        tag=tag,
        thread=thread,
        flags=Flag(flags),
    )
