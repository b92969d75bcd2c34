"""The reading side of a tape: follows the ring, tracks open intervals, and counts lost records."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from otel_torchdist.model.history import Activity
from otel_torchdist.model.kinds import Flag, RecordKind
from otel_torchdist.model.operations import Operation
from otel_torchdist.tape import layout, seals
from otel_torchdist.tape.layout import LiveWord
from otel_torchdist.tape.mapped import MappedTape, is_whole, number_of, words_of
from otel_torchdist.tape.memory import TapeMemory
from otel_torchdist.tape.reading.batch import Batch, TapeCursor
from otel_torchdist.tape.reading.open_intervals import OpenIntervals
from otel_torchdist.tape.reading.pending_numerics import PendingNumerics
from otel_torchdist.tape.reading.scans import RingScan, unfinished
from otel_torchdist.tape.records.activities import decoded, interval_of
from otel_torchdist.tape.records.operations import operation_of, step_of
from otel_torchdist.tape.records.splits import PendingSplits

UNCOMMITTED_BOUND_S: Final = 1.0
"""Time after which a number that was drawn but not committed counts as lost: its thread has died."""
COPIED_AT_ONCE: Final = 256
"""Records copied by one system call."""
POLL_LIMIT: Final = 50_000

_RECORD: Final = struct.Struct(f"=QQ{layout.PAYLOAD.format[1:]}{layout.WORDS}Q")
_KIND: Final = 13
_FLAGS: Final = 14
"""Index in `_RECORD`, as `_KIND`."""
_FLAGS_FIELD: Final = 12
"""Index in a payload."""
_UNEVEN: Final = int(Flag.UNEVEN)
_OPERATION: Final = int(RecordKind.OPERATION)


class TapeReader(MappedTape):
    """Follows one tape. Not thread-safe, but any number of readers may follow the same tape.

    Attributes:
        lost: Records lost since this reader was opened.
    """

    def _attach(self, path: Path, memory: TapeMemory) -> None:
        super()._attach(path, memory)
        self.lost = 0
        self._next = 1
        self._gap_since: float | None = None
        self._splits = PendingSplits()
        self._pending_numerics = PendingNumerics()
        self._open = OpenIntervals()
        self._ahead = b""
        self._ahead_from = 0
        self._scan = RingScan(self)

    @property
    def cursor(self) -> TapeCursor:
        """This reader's position."""
        return TapeCursor(self._next, tuple(self.open_operations()), self.lost, tuple(self.open_activities()))

    def resume(self, cursor: TapeCursor) -> None:
        """Continue at the position of another reader of this tape, instead of at the oldest record."""
        self._next = cursor.next_number
        self._open.resume((*cursor.open, *cursor.open_activities))
        self.lost = cursor.lost

    def skip_to_newest(self, count: int) -> None:
        """Continue with about the newest `count` records. Older open operations remain unknown."""
        self._next = max(self._next, self.words[LiveWord.NEXT_NUMBER] - count)

    def read_before(self, cursor: TapeCursor) -> Batch:
        """Read the records in the ring before another reader's position. Missing records do not count as lost."""
        past = Batch()
        while self._next < cursor.next_number:
            before = self._next
            batch = self.poll(cursor.next_number - before)
            past.entered += batch.entered
            past.ended += batch.ended
            past.steps += batch.steps
            past.activities_entered += batch.activities_entered
            past.activities_ended += batch.activities_ended
            if self._next == before:
                break  # a gap that may still be filled
        still_open = {interval.number for interval in (*cursor.open, *cursor.open_activities)}
        end = cursor.next_number  # a lapped reader may have skipped beyond it
        past.entered = [operation for operation in past.entered if operation.number < end]
        past.ended = [call for call in past.ended if call.number < end and call.number not in still_open]
        past.steps = [mark for mark in past.steps if mark.number < end]
        past.activities_entered = [activity for activity in past.activities_entered if activity.number < end]
        past.activities_ended = [
            activity
            for activity in past.activities_ended
            if activity.number < end and activity.number not in still_open
        ]
        return past

    @property
    def open_count(self) -> int:
        """Number of open operations and activities at the last poll."""
        return self._open.count

    def open_operations(self) -> list[Operation]:
        """Return the open operations at the last poll, oldest first."""
        return [interval for interval in self._open.oldest_first() if isinstance(interval, Operation)]

    def open_activities(self) -> list[Activity]:
        """Return the open activities at the last poll, oldest first."""
        return [interval for interval in self._open.oldest_first() if isinstance(interval, Activity)]

    def poll_to_end(self) -> Iterator[Batch]:
        """Poll to the current end of the tape. The number of polls is bounded, since a live rank keeps writing.

        Raises:
            TapeError: The file has become too short.
        """
        return (self.poll() for _ in range(2 + self.capacity // POLL_LIMIT))

    def poll(self, limit: int = POLL_LIMIT, may_skip: bool = False) -> Batch:
        """Read new records, and update the open operations and activities.

        Args:
            limit: Upper bound on the records read.
            may_skip: Whether finished records may be skipped. If so, and if more than half of the ring is unread,
                finished records outside its newest eighth are counted as lost without being read.

        Raises:
            TapeError: The file has become too short.
        """
        batch = Batch()
        self._scan.begin_poll()
        if may_skip:
            self._skip_finished(batch)
        caught_up = self._read_new(batch, limit)
        self._ahead = b""
        self._open.update(self, batch, caught_up)
        self._pending_numerics.update(self, batch)
        self.lost += batch.lost
        return batch

    def _read_new(self, batch: Batch, limit: int) -> bool:
        """Read committed records in order. Return whether the end of the tape was reached."""
        last = self._next + limit
        for _ in range(limit):
            self._read_copied(batch, last - self._next)
            if self._next >= last:
                return False
            stored = self._number_in_next_slot()
            if stored == self._next:
                if self._read_record(batch):
                    self._advance()
                continue  # otherwise it was overwritten during the read, and the next pass finds the later number
            newest = self._newest(stored)
            if newest < self._next:
                self._gap_since = None
                return True
            if newest >= self._next + self.capacity:
                self._skip_lapped(batch, newest)
                last = self._next + limit
                continue
            if not self._gap_is_final():
                return False
            if self.number_in_slot(self._next) != self._next:
                batch.lost += 1
                self._advance()
        return False

    def _read_copied(self, batch: Batch, limit: int) -> None:
        """Read up to `limit` records from the copied part of the ring, up to the first that is not an intact operation.

        Almost all records are intact operations. The slow path reads other records one at a time.
        """
        ahead, number = self._ahead, self._next
        start = (number - self._ahead_from) * layout.RECORD_SIZE
        if not 0 <= start < len(ahead) or self._pending_numerics.awaits_operations:
            return
        end = min(len(ahead), start + limit * layout.RECORD_SIZE)
        for offset in range(start, end, layout.RECORD_SIZE):
            record = _RECORD.unpack_from(ahead, offset)
            if record[0] != number or record[_KIND] != _OPERATION or record[_FLAGS] & _UNEVEN:
                break
            payload = ahead[offset + layout.PAYLOAD_OFFSET : offset + layout.WORDS_OFFSET]
            if record[1] != seals.payload_checksum(number, payload):
                break
            try:
                operation = operation_of(number, record[2 : -layout.WORDS])
            except ValueError:  # a phase unknown to this version, or an impossible number
                break
            self._open.enter(operation, record[-layout.WORDS :], batch)
            number += 1
        if number != self._next:
            self._next = number
            self._gap_since = None

    def _number_in_next_slot(self) -> int:
        """Return the number now in the slot of the next record."""
        if self._copied(self._next) is None:
            self._copy_ahead()
        return number_of(self._ahead, (self._next - self._ahead_from) * layout.RECORD_SIZE)

    def _copied(self, number: int) -> bytes | None:
        """Return a record from the copied part of the ring, valid or not; None if that part does not contain it."""
        offset = (number - self._ahead_from) * layout.RECORD_SIZE
        if not 0 <= offset < len(self._ahead) or number_of(self._ahead, offset) != number:
            return None
        return self._ahead[offset : offset + layout.RECORD_SIZE]

    def _copy_ahead(self) -> None:
        """Copy new records with one system call: a call per record would cost more."""
        written = self.words[LiveWord.NEXT_NUMBER] - self._next
        count = max(1, min(written, self.capacity - self._next % self.capacity, COPIED_AT_ONCE))
        self._ahead = self.words.read(self._offset_of(self._next), count * layout.RECORD_SIZE)
        self._ahead_from = self._next

    def _advance(self) -> None:
        self._next += 1
        self._gap_since = None

    def _newest(self, stored: int) -> int:
        """Return the newest committed number, given the number in the next record's slot.

        The live word NEXT_NUMBER is unprotected, so it is trusted only if it is less than a lap ahead. Otherwise only
        valid records in the ring count.
        """
        hint = self.words[LiveWord.NEXT_NUMBER] - 1
        near = hint < self._next + self.capacity
        if near and stored < self._next:
            return hint
        if hint >= stored and self.record(hint) is not None:
            return hint
        return max(self._scan.newest(), hint if near else 0)

    def _skip_lapped(self, batch: Batch, newest: int) -> None:
        """Continue a little after the oldest record in the ring, because the oldest is overwritten next.

        The refuge still contains overwritten records that are open, such as a hanging operation.
        """
        resume = newest - self.capacity + 1 + self.capacity // 16
        saved = [
            interval
            for number, slot in sorted(self.refuge().items())
            if self._next <= number < resume
            and (interval := decoded(number, self.refuge_record(number, slot))) is not None
        ]
        for interval in saved:
            self._open.keep(interval, batch)
        batch.lost += resume - self._next - len(saved)
        self._next = resume
        self._gap_since = None

    def _skip_finished(self, batch: Batch) -> None:
        """If more than half the ring is unread, skip to its newest eighth. Read only unfinished records and steps."""
        newest = self._newest(self._number_in_next_slot())
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
            except ValueError:  # a kind unknown to this version, or an impossible number
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
            self._ahead = b""  # this record may have been written during the copy
            data = self.record(number)
        if data is None:
            if self.number_in_slot(number) != number:
                return False
            batch.lost += 1
            return True
        try:
            self._take(number, data, batch)
        except ValueError:  # a kind unknown to this version, or an impossible number
            batch.lost += 1
            batch.refused += 1
        return True

    def _take(self, number: int, data: bytes, batch: Batch) -> None:
        fields = layout.PAYLOAD.unpack_from(data, layout.PAYLOAD_OFFSET)
        match RecordKind(fields[11]):
            case RecordKind.OPERATION:
                is_uneven = fields[_FLAGS_FIELD] & _UNEVEN
                splits = self._splits.take(thread=fields[10], entered_ns=fields[0]) if is_uneven else None
                operation = operation_of(number, fields, splits, self._pending_numerics.take(self, fields, batch))
                self._open.enter(operation, words_of(data), batch)
            case RecordKind.RENDEZVOUS | RecordKind.ACTIVITY:
                self._open.enter(interval_of(number, fields), words_of(data), batch)
            case RecordKind.STEP:
                batch.steps.append(step_of(number, fields))
            case RecordKind.LATE_COMPLETION:
                self._open.end_late(number, fields, data, batch)
            case RecordKind.SPLITS:
                self._splits.add(data[layout.PAYLOAD_OFFSET : layout.WORDS_OFFSET])
                batch.companions.append(number)
            case RecordKind.NUMERICS:
                self._pending_numerics.add(number, fields)
                batch.companions.append(number)
