"""Tracks the open operations and activities of one tape until they end or their records are lost."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from otel_torchdist.model.history import Interval
from otel_torchdist.model.kinds import Flag, How, RecordKind
from otel_torchdist.model.operations import Operation
from otel_torchdist.tape.layout import Word, check_position, unpack_failure
from otel_torchdist.tape.mapped import MappedTape, words_of
from otel_torchdist.tape.reading.batch import Batch
from otel_torchdist.tape.records.activities import updated_interval

# A synchronous collective blocks its thread. Once that thread has entered another operation, the previous call is over.
# If its record stayed open, it would look like a permanent stall.

GRACE_NS: Final = 1_000_000_000
"""Delay before a call counts as abandoned: a backend written in Python may issue nested operations, which end first."""
MAX_THREADS: Final = 4096

_RETURNS_EARLY: Final = int(Flag.ASYNC | Flag.POINT_TO_POINT | Flag.COALESCED | Flag.ON_DEVICE)
"""Flags of calls that may return before their operation ends."""


class AbandonedCalls:
    """Detects the abandoned calls of one tape."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[int, int]] = {}
        self._left_ns: dict[int, int] = {}

    def entered(self, operation: Operation) -> None:
        """Register an operation. Called in the order of the tape."""
        if len(self._newest) >= MAX_THREADS:
            self._newest.clear()
        self._newest[operation.thread] = operation.number, operation.entered_ns

    def among(self, open_operations: Iterable[Operation]) -> list[Operation]:
        """Return the abandoned operations. Each ends when its thread entered its next operation."""
        now_ns = time.monotonic_ns()
        left_ns_by_number: dict[int, int] = {}
        abandoned: list[Operation] = []
        for operation in open_operations:
            number, entered_ns = self._newest.get(operation.thread, (0, 0))
            if number <= operation.number or int(operation.flags) & _RETURNS_EARLY:
                continue
            if operation.kind is not RecordKind.OPERATION or not operation.thread:
                continue
            left_ns = left_ns_by_number[operation.number] = self._left_ns.get(operation.number, entered_ns)
            if now_ns - left_ns >= GRACE_NS:
                abandoned.append(msgspec.structs.replace(operation, completed_ns=left_ns, how=How.ABANDONED))
        self._left_ns = left_ns_by_number
        return abandoned


_COMPLETED: Final = int(Word.COMPLETED)


class OpenIntervals:
    """The open operations and activities of one tape.

    It has no reference to its reader: in a reference cycle, a dropped reader would not close its file immediately.
    """

    def __init__(self) -> None:
        self._open: dict[int, Interval] = {}
        self._ended_words: dict[int, Sequence[int]] = {}
        self._missing: set[int] = set()
        self._abandoned = AbandonedCalls()

    def resume(self, intervals: Iterable[Interval]) -> None:
        """Continue with the open intervals of another reader."""
        self._open = {interval.number: interval for interval in intervals}

    @property
    def count(self) -> int:
        """Number of open operations and activities at the last poll."""
        return len(self._open)

    def oldest_first(self) -> list[Interval]:
        """Return the open operations and activities at the last poll."""
        return [interval for _, interval in sorted(self._open.items())]

    def keep(self, interval: Interval, batch: Batch) -> None:
        """Add an interval whose slot was reused while it was open. Called in the order of the tape."""
        batch.add_entered(interval)
        self._open[interval.number] = interval

    def enter(self, interval: Interval, words: Sequence[int], batch: Batch) -> None:
        """Add an interval with the words of its record. Called in the order of the tape."""
        batch.add_entered(interval)
        self._open[interval.number] = interval
        if words[_COMPLETED]:  # stored last, so the other words need no second read
            self._ended_words[interval.number] = words
        if isinstance(interval, Operation):
            self._abandoned.entered(interval)

    def end_late(self, number: int, fields: Sequence[int], data: bytes, batch: Batch) -> None:
        """Process a `LATE_COMPLETION`: the end of an interval whose own record has been overwritten.

        Raises:
            ValueError: Its `How` is unknown to this version, or its time is impossible.
        """
        entered, _, original, elapsed, _, failure, _, _, how_code = fields[:9]
        check_position(number, entered, elapsed, original)
        how = How(how_code)
        interval = self._open.pop(original, None)
        self._missing.discard(original)
        if interval is None:
            batch.lost += 1
            return
        current = updated_interval(interval, words_of(data)) or interval
        name, blame = unpack_failure(failure)
        ended = msgspec.structs.replace(current, completed_ns=entered + elapsed, how=how, failure=name)
        batch.add_ended(msgspec.structs.replace(ended, blame=blame) if isinstance(ended, Operation) else ended)

    def update(self, tape: MappedTape, batch: Batch, caught_up: bool) -> None:
        """Add the ends since the last poll to the batch. `caught_up` is true if no record is unread."""
        refuge: dict[int, int] | None = None
        for number, interval in list(self._open.items()):
            ended_words = self._ended_words.get(number)
            if ended_words is not None and (ended := updated_interval(interval, ended_words)) is not None:
                self._settle(ended, batch)
                continue
            words = tape.ring_words(number)
            if words is None:
                refuge = tape.refuge() if refuge is None else refuge
                words = _refuge_words(tape, number, refuge)
            if words is None:
                self._handle_missing(number, batch, caught_up)
                continue
            self._missing.discard(number)
            if any(words):
                self._renew(interval, words, batch)
        self._ended_words.clear()
        self._end_abandoned(batch)

    def _end_abandoned(self, batch: Batch) -> None:
        operations = (interval for interval in self._open.values() if isinstance(interval, Operation))
        for ended in self._abandoned.among(operations):
            del self._open[ended.number]
            batch.ended.append(ended)

    def _renew(self, interval: Interval, words: Sequence[int], batch: Batch) -> None:
        current = updated_interval(interval, words)
        if current is None:
            del self._open[interval.number]
            batch.lost += 1
        else:
            self._settle(current, batch)

    def _settle(self, current: Interval, batch: Batch) -> None:
        """Store the current state of an open interval, or add an ended interval to the batch."""
        if current.is_open:
            self._open[current.number] = current
            return
        del self._open[current.number]
        batch.add_ended(current)

    def _handle_missing(self, number: int, batch: Batch, caught_up: bool) -> None:
        """Handle a record missing from ring and refuge. It is lost if no late completion arrives by the next poll."""
        if not caught_up or number not in self._missing:
            self._missing.add(number)
            return
        self._missing.discard(number)
        del self._open[number]
        batch.lost += 1


def _refuge_words(tape: MappedTape, number: int, refuge: dict[int, int]) -> Sequence[int] | None:
    slot = refuge.get(number)
    record = None if slot is None else tape.refuge_record(number, slot)
    return None if record is None else words_of(record)
