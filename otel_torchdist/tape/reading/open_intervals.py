"""Follows what a reader has seen begin, on one tape, until it has ended or can no longer be read."""

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
from otel_torchdist.tape.records.activities import renewed_interval

# A synchronous collective blocks its thread. Once that thread has entered another operation, the previous call is over,
# and its record, left open, would look like a permanent stall.

GRACE_NS: Final = 1_000_000_000
"""A backend written in Python may issue operations of its own inside a call, which ends after they do."""
MAX_THREADS: Final = 4096

_LETS_GO: Final = int(Flag.ASYNC | Flag.POINT_TO_POINT | Flag.COALESCED | Flag.ON_DEVICE)
"""With any of these flags a call returns before its operation ends."""


class AbandonedCalls:
    """Finds the abandoned calls of one tape."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[int, int]] = {}
        self._left_ns: dict[int, int] = {}

    def entered(self, operation: Operation) -> None:
        """Register an operation; called in the order of the tape."""
        if len(self._newest) >= MAX_THREADS:
            self._newest.clear()
        self._newest[operation.thread] = operation.number, operation.entered_ns

    def among(self, open_operations: Iterable[Operation]) -> list[Operation]:
        """Return the abandoned ones of the open operations, as ended when their thread entered its next operation."""
        now_ns = time.monotonic_ns()
        left: dict[int, int] = {}
        found: list[Operation] = []
        for operation in open_operations:
            number, entered_ns = self._newest.get(operation.thread, (0, 0))
            if number <= operation.number or int(operation.flags) & _LETS_GO:
                continue
            if operation.kind is not RecordKind.OPERATION or not operation.thread:
                continue
            left_ns = left[operation.number] = self._left_ns.get(operation.number, entered_ns)
            if now_ns - left_ns >= GRACE_NS:
                found.append(msgspec.structs.replace(operation, completed_ns=left_ns, how=How.ABANDONED))
        self._left_ns = left
        return found


_COMPLETED: Final = int(Word.COMPLETED)


class OpenIntervals:
    """The operations and activities of one tape that have not ended.

    Its reader has it, and it does not have its reader: a reader that is dropped is to close its file at once.
    """

    def __init__(self) -> None:
        self._open: dict[int, Interval] = {}
        self._ended_words: dict[int, Sequence[int]] = {}
        self._missing: set[int] = set()
        self._abandoned = AbandonedCalls()

    def resume(self, known: Iterable[Interval]) -> None:
        """Continue with what another reader has left open."""
        self._open = {interval.number: interval for interval in known}

    @property
    def count(self) -> int:
        """Number of operations and activities that had not ended at the last poll."""
        return len(self._open)

    def oldest_first(self) -> list[Interval]:
        """Return what had not ended at the last poll."""
        return [interval for _, interval in sorted(self._open.items())]

    def keep(self, interval: Interval, batch: Batch) -> None:
        """Add what was overwritten while it was open; called in the order of the tape."""
        batch.add_entered(interval)
        self._open[interval.number] = interval

    def enter(self, interval: Interval, words: Sequence[int], batch: Batch) -> None:
        """Add what has been entered, with the words that its record had then; called in the order of the tape."""
        batch.add_entered(interval)
        self._open[interval.number] = interval
        if words[_COMPLETED]:  # stored last: there is no need to read the words again
            self._ended_words[interval.number] = words
        if isinstance(interval, Operation):
            self._abandoned.entered(interval)

    def end_late(self, number: int, fields: Sequence[int], data: bytes, batch: Batch) -> None:
        """Take a record of kind `LATE_COMPLETION`: the end of what its own record no longer shows.

        Raises:
            ValueError: Its end is known in a way unknown to this version, or at an impossible time.
        """
        entered, _, original, elapsed, _, failure, _, _, how = fields[:9]
        check_position(number, entered, elapsed, original)
        known_how = How(how)
        interval = self._open.pop(original, None)
        self._missing.discard(original)
        if interval is None:
            batch.lost += 1
            return
        known = renewed_interval(interval, words_of(data)) or interval
        name, blame = unpack_failure(failure)
        ended = msgspec.structs.replace(known, completed_ns=entered + elapsed, how=known_how, failure=name)
        batch.add_ended(msgspec.structs.replace(ended, blame=blame) if isinstance(ended, Operation) else ended)

    def read_again(self, tape: MappedTape, batch: Batch, caught_up: bool) -> None:
        """Add to the batch what has ended since the last poll; `caught_up` says that no record is unread."""
        refuge: dict[int, int] | None = None
        for number, interval in list(self._open.items()):
            copied = self._ended_words.get(number)
            if copied is not None and (ended := renewed_interval(interval, copied)) is not None:
                self._settle(ended, batch)
                continue
            words = tape.ring_words(number)
            if words is None:
                refuge = tape.refuge() if refuge is None else refuge
                words = _refuge_words(tape, number, refuge)
            if words is None:
                self._vanish(number, batch, caught_up)
                continue
            self._missing.discard(number)
            if any(words):
                self._renew(interval, words, batch)
        self._ended_words.clear()
        self._end_abandoned(batch)

    def _end_abandoned(self, batch: Batch) -> None:
        for ended in self._abandoned.among(one for one in self._open.values() if isinstance(one, Operation)):
            del self._open[ended.number]
            batch.ended.append(ended)

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


def _refuge_words(tape: MappedTape, number: int, refuge: dict[int, int]) -> Sequence[int] | None:
    slot = refuge.get(number)
    record = None if slot is None else tape.refuge_record(number, slot)
    return None if record is None else words_of(record)
