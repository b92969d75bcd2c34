"""The reading side of a tape: follows the ring, tracks what is open, and counts what could not be read."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from otel_torchdist.tape import layout
from otel_torchdist.tape.activities import Activity, Interval, decoded, interval_of, renewed_interval
from otel_torchdist.tape.layout import Flag, How, LiveWord, RecordKind, Word
from otel_torchdist.tape.mapped import MappedTape, is_whole, number_of
from otel_torchdist.tape.memory import TapeMemory
from otel_torchdist.tape.operations import operation_of
from otel_torchdist.tape.reading.abandoned import AbandonedCalls
from otel_torchdist.tape.reading.batch import Batch, TapeCursor
from otel_torchdist.tape.reading.newest import NewestWhole
from otel_torchdist.tape.reading.unfinished import unfinished
from otel_torchdist.tape.records import Operation, StepMark
from otel_torchdist.tape.splits import PendingSplits

UNCOMMITTED_BOUND_S: Final = 1.0
"""A number reserved but not committed for this long belongs to a thread that died in between."""
COPIED_AT_ONCE: Final = 256
"""Records copied by one system call."""
POLL_LIMIT: Final = 50_000

_WORDS: Final = struct.Struct(f"={layout.WORDS}Q")
_RECORD: Final = struct.Struct(f"=QQ{layout.PAYLOAD.format[1:]}{layout.WORDS}Q")
_KIND: Final = 13
_FLAGS: Final = 14
"""Positions in a whole record."""
_UNEVEN: Final = int(Flag.UNEVEN)
_OPERATION: Final = int(RecordKind.OPERATION)
_COMPLETED: Final = int(Word.COMPLETED)


class TapeReader(MappedTape):
    """Follows one tape. Not thread-safe; any number of readers may follow the same tape.

    Attributes:
        lost: Records lost since this reader was opened.
    """

    def _follow(self, path: Path, memory: TapeMemory) -> None:
        super()._follow(path, memory)
        self.lost = 0
        self._next = 1
        self._gap_since: float | None = None
        self._missing: set[int] = set()
        self._abandoned = AbandonedCalls()
        self._splits = PendingSplits()
        self._open: dict[int, Interval] = {}
        self._ahead = b""
        self._ahead_from = 0
        self._ended_words: dict[int, Sequence[int]] = {}
        self._scan = NewestWhole(self)

    @property
    def cursor(self) -> TapeCursor:
        """This reader's position."""
        return TapeCursor(self._next, tuple(self.open_operations()), self.lost, tuple(self.open_activities()))

    def resume(self, cursor: TapeCursor) -> None:
        """Continue at the position of another reader of this tape instead of at the oldest record."""
        self._next = cursor.next_number
        self._open = {interval.number: interval for interval in (*cursor.open, *cursor.open_activities)}
        self.lost = cursor.lost

    def skip_to_newest(self, count: int) -> None:
        """Continue with about the newest `count` records; what was entered before them is not known then."""
        self._next = max(self._next, self.words[LiveWord.NEXT_NUMBER] - count)

    def read_before(self, cursor: TapeCursor) -> Batch:
        """Read what another reader had read, as far as the ring still holds it; the batch counts nothing as lost."""
        past = Batch()
        while self._next < cursor.next_number:
            before = self._next
            found = self.poll(cursor.next_number - before)
            past.entered += found.entered
            past.ended += found.ended
            past.steps += found.steps
            past.activities_entered += found.activities_entered
            past.activities_ended += found.activities_ended
            if self._next == before:
                break  # a gap that may still be filled
        still_open = {interval.number for interval in (*cursor.open, *cursor.open_activities)}
        end = cursor.next_number  # a lapped reader may have skipped past it
        past.entered = [operation for operation in past.entered if operation.number < end]
        past.ended = [one for one in past.ended if one.number < end and one.number not in still_open]
        past.steps = [mark for mark in past.steps if mark.number < end]
        past.activities_entered = [activity for activity in past.activities_entered if activity.number < end]
        past.activities_ended = [
            one for one in past.activities_ended if one.number < end and one.number not in still_open
        ]
        return past

    def open_operations(self) -> list[Operation]:
        """Return the operations that had not ended at the last poll, oldest first."""
        return [one for _, one in sorted(self._open.items()) if isinstance(one, Operation)]

    def open_activities(self) -> list[Activity]:
        """Return the activities that had not ended at the last poll, oldest first."""
        return [one for _, one in sorted(self._open.items()) if isinstance(one, Activity)]

    def rest(self) -> Iterator[Batch]:
        """Poll until everything that was there is read; following what a live rank writes meanwhile would never end.

        Raises:
            TapeError: The file has become too short.
        """
        return (self.poll() for _ in range(2 + self.capacity // POLL_LIMIT))

    def poll(self, limit: int = POLL_LIMIT, is_behind: bool = False) -> Batch:
        """Read new records, and check again everything that was open.

        Args:
            limit: How many are read at most.
            is_behind: Whether there is no time to read everything: if more than half a ring is unread, what has already
                ended in all but its newest eighth is only counted as lost.

        Raises:
            TapeError: The file has become too short.
        """
        batch = Batch()
        self._scan.begin_poll()
        if is_behind:
            self._pass_over(batch)
        caught_up = self._read_new(batch, limit)
        self._reread_open(batch, caught_up)
        self._ahead = b""
        self._ended_words.clear()
        for ended in self._abandoned.among(one for one in self._open.values() if isinstance(one, Operation)):
            del self._open[ended.number]
            batch.ended.append(ended)
        self.lost += batch.lost
        return batch

    def _read_new(self, batch: Batch, limit: int) -> bool:
        """Read committed records in order; returns whether the end of the tape was reached."""
        last = self._next + limit
        for _ in range(limit):
            self._take_ahead(batch, last - self._next)
            if self._next >= last:
                return False
            seen = self._seen()
            if seen == self._next:
                if self._read_record(batch):
                    self._advance()
                continue  # if not, it was overwritten during the read: the next pass sees the later number
            newest = self._newest(seen)
            if newest < self._next:
                self._gap_since = None
                return True
            if newest >= self._next + self.capacity:
                self._skip_lapped(batch, newest)
                continue
            if not self._gap_is_final():
                return False
            if self._number_in_slot(self._next) != self._next:
                batch.lost += 1
                self._advance()
        return False

    def _take_ahead(self, batch: Batch, limit: int) -> None:
        """Take the next records, at most `limit`, as long as they are operations and whole in the copy made ahead.

        Almost all records are; the others go the long way, one at a time.
        """
        ahead, number = self._ahead, self._next
        begin = (number - self._ahead_from) * layout.RECORD_SIZE
        if not 0 <= begin < len(ahead):
            return
        end = min(len(ahead), begin + limit * layout.RECORD_SIZE)
        for place in range(begin, end, layout.RECORD_SIZE):
            record = _RECORD.unpack_from(ahead, place)
            if record[0] != number or record[_KIND] != _OPERATION or record[_FLAGS] & _UNEVEN:
                break
            payload = ahead[place + layout.PAYLOAD_OFFSET : place + layout.WORDS_OFFSET]
            if record[1] != layout.payload_checksum(number, payload):
                break
            try:
                operation = operation_of(number, record[2 : -layout.WORDS])
            except ValueError:  # of a phase unknown to this version
                break
            self._enter(operation, record[-layout.WORDS :], batch)
            number += 1
        if number != self._next:
            self._next = number
            self._gap_since = None

    def _seen(self) -> int:
        """Return the number in the next record's slot: its own if it is there, else whatever is there now."""
        if self._copied(self._next) is None:
            self._peek_ahead()
        return number_of(self._ahead, (self._next - self._ahead_from) * layout.RECORD_SIZE)

    def _copied(self, number: int) -> bytes | None:
        """Return a record from the copy made ahead, valid or not; None if the copy has none with this number."""
        place = (number - self._ahead_from) * layout.RECORD_SIZE
        if not 0 <= place < len(self._ahead) or number_of(self._ahead, place) != number:
            return None
        return self._ahead[place : place + layout.RECORD_SIZE]

    def _peek_ahead(self) -> None:
        """Copy newly written records in one piece: a system call per record would cost more."""
        written = self.words[LiveWord.NEXT_NUMBER] - self._next
        count = max(1, min(written, self.capacity - self._next % self.capacity, COPIED_AT_ONCE))
        self._ahead = self.words.read(self._offset_of(self._next), count * layout.RECORD_SIZE)
        self._ahead_from = self._next

    def _number_in_slot(self, number: int) -> int:
        return self.words[self._offset_of(number) >> 3]

    def _advance(self) -> None:
        self._next += 1
        self._gap_since = None

    def _newest(self, seen: int) -> int:
        """Return the newest committed number, given the number in the next record's slot.

        The live word is a hint, trusted for less than a lap; beyond that only valid records in the ring count.
        """
        hint = self.words[LiveWord.NEXT_NUMBER] - 1
        near = hint < self._next + self.capacity
        if near and seen < self._next:
            return hint
        if hint >= seen and self.record(hint) is not None:
            return hint
        return max(self._scan.newest(), hint if near else 0)

    def _skip_lapped(self, batch: Batch, newest: int) -> None:
        """Continue a little after the oldest record, which is the next to be overwritten.

        Of the overwritten records, the refuge still has what is open: the operation that hangs.
        """
        resume = newest - self.capacity + 1 + self.capacity // 16
        saved = [
            interval
            for number, slot in sorted(self.refuge().items())
            if self._next <= number < resume
            and (interval := decoded(number, self.refuge_record(number, slot))) is not None
        ]
        for interval in saved:
            batch.add_entered(interval)
            self._open[interval.number] = interval
        batch.lost += resume - self._next - len(saved)
        self._next = resume
        self._gap_since = None

    def _pass_over(self, batch: Batch) -> None:
        """Continue with the newest eighth of a ring of which more than half is unread; keep what must not be missed."""
        newest = self._newest(self._seen())
        if newest - self._next < self.capacity // 2:
            return
        if newest >= self._next + self.capacity:
            self._skip_lapped(batch, newest)
        first, end = self._next, newest + 1 - self.capacity // 8
        lost = end - first
        for number in unfinished(self.words, self.capacity, first, end):
            data = self.record(number)
            if data is None:
                continue
            try:
                self._take(number, data, batch)
                lost -= 1
            except ValueError:  # a kind unknown to this version
                continue
        batch.lost += lost
        batch.is_cut = True
        self._next = end
        self._gap_since = None

    def _gap_is_final(self) -> bool:
        now = time.monotonic()
        if self._gap_since is None:
            self._gap_since = now
        return now - self._gap_since > UNCOMMITTED_BOUND_S or not self.is_alive()

    def _read_record(self, batch: Batch) -> bool:
        number = self._next
        data = self._copied(number)
        if data is None or not is_whole(data, number):
            self._ahead = b""  # the copy may have been made while this record was written
            data = self.record(number)
        if data is None:
            if self._number_in_slot(number) != number:
                return False
            batch.lost += 1
            return True
        try:
            self._take(number, data, batch)
        except ValueError:  # a kind unknown to this version
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
        if kind is RecordKind.SPLITS:
            self._splits.add(data[layout.PAYLOAD_OFFSET : layout.WORDS_OFFSET])
            batch.splits.append(number)
            return
        if fields[12] & _UNEVEN:
            interval = operation_of(number, fields, self._splits.take(thread=fields[10], entered_ns=fields[0]))
        else:
            interval = interval_of(number, fields)
        self._enter(interval, _WORDS.unpack_from(data, layout.WORDS_OFFSET), batch)

    def _enter(self, interval: Interval, words: Sequence[int], batch: Batch) -> None:
        batch.add_entered(interval)
        self._open[interval.number] = interval
        if words[_COMPLETED]:  # stored last: there is no need to read the words again
            self._ended_words[interval.number] = words
        if isinstance(interval, Operation):
            self._abandoned.entered(interval)

    def _take_late(self, fields: tuple[int, ...], data: bytes, batch: Batch) -> None:
        entered, _, original, elapsed, _, failure, _, _, how = fields[:9]
        interval = self._open.pop(original, None)
        self._missing.discard(original)
        if interval is None:
            batch.lost += 1
            return
        known = renewed_interval(interval, _WORDS.unpack_from(data, layout.WORDS_OFFSET)) or interval
        batch.add_ended(msgspec.structs.replace(known, completed_ns=entered + elapsed, how=How(how), failure=failure))

    def _reread_open(self, batch: Batch, caught_up: bool) -> None:
        refuge: dict[int, int] | None = None
        for number, interval in list(self._open.items()):
            copied = self._ended_words.get(number)
            if copied is not None and (ended := renewed_interval(interval, copied)) is not None:
                self._settle(ended, batch)
                continue
            words = self._ring_words(number)
            if words is None:
                refuge = self.refuge() if refuge is None else refuge
                words = self._refuge_words(number, refuge)
            if words is None:
                self._vanish(number, batch, caught_up)
                continue
            self._missing.discard(number)
            if any(words):
                self._renew(interval, words, batch)

    def _ring_words(self, number: int) -> Sequence[int] | None:
        """Return a record's current words; None when its slot has been reused."""
        data = self.words.read(self._offset_of(number), layout.RECORD_SIZE)
        if number_of(data) != number:
            return None
        words = _WORDS.unpack_from(data, layout.WORDS_OFFSET)
        # The copy is not atomic: words of another record may have been stored meanwhile.
        return words if not any(words) or self._number_in_slot(number) == number else None

    def _refuge_words(self, number: int, refuge: dict[int, int]) -> Sequence[int] | None:
        slot = refuge.get(number)
        record = None if slot is None else self.refuge_record(number, slot)
        return None if record is None else _WORDS.unpack_from(record, layout.WORDS_OFFSET)

    def _renew(self, interval: Interval, words: Sequence[int], batch: Batch) -> None:
        current = renewed_interval(interval, words)
        if current is None:
            del self._open[interval.number]
            batch.lost += 1
        else:
            self._settle(current, batch)

    def _settle(self, current: Interval, batch: Batch) -> None:
        """Keep the current state of what is open, or add it to the batch if it has ended."""
        if current.is_open:
            self._open[current.number] = current
            return
        del self._open[current.number]
        batch.add_ended(current)

    def _vanish(self, number: int, batch: Batch, caught_up: bool) -> None:
        """Handle a record in neither ring nor refuge: its late completion may still be ahead, but only once."""
        if not caught_up or number not in self._missing:
            self._missing.add(number)
            return
        self._missing.discard(number)
        del self._open[number]
        batch.lost += 1
