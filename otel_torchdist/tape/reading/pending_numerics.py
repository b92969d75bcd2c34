"""Tracks the numerics records of one tape until their operations are read and all values are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from otel_torchdist.model.numerics import Numerics, NumericsFlag
from otel_torchdist.model.operations import Operation
from otel_torchdist.tape.layout import check_position
from otel_torchdist.tape.mapped import MappedTape
from otel_torchdist.tape.reading.batch import Batch
from otel_torchdist.tape.records.numerics import numerics_of, with_words

MAX_INCOMPLETE: Final = 512
"""Upper bound on the records with pending words. Records of operations that are never waited for stay pending."""
_PARAMETERS: Final = int(NumericsFlag.PARAMETERS)
_COMPARABLE: Final = int(NumericsFlag.COMPARABLE)


class PendingNumerics:
    """The numerics records of one tape that wait for their operation to be read, or for words to be stored."""

    def __init__(self) -> None:
        self._by_thread: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._incomplete: dict[int, Numerics] = {}

    @property
    def awaits_operations(self) -> bool:
        """Whether the operation of a record has not been read yet."""
        return bool(self._by_thread)

    def add(self, number: int, fields: tuple[int, ...]) -> None:
        """Add a record. It replaces a record of the same thread whose operation was not recorded.

        Raises:
            ValueError: Its time or position is impossible.
        """
        check_position(number, *fields[:3])
        if fields[12] & _PARAMETERS:
            self._track(numerics_of(number, fields, ()))
            return
        self._by_thread[fields[10]] = (number, fields)

    def take(self, tape: MappedTape, operation: Sequence[int], batch: Batch) -> Numerics | None:
        """Return the numerics of an operation, and add them to the batch; None if not recorded.

        Args:
            tape: The tape. The words of the numerics record are read again, because they were stored after the record
                and before the operation.
            operation: The fields of the operation's payload.
            batch: The batch of this poll.
        """
        pending = self._by_thread.pop(operation[10], None)
        if pending is None:
            return None
        number, fields = pending
        if (fields[2], fields[4]) != (operation[2], operation[4]):  # sequence and group
            return None
        numerics = numerics_of(number, fields, tape.ring_words(number) or ())
        batch.numerics.append(numerics)
        if not _is_complete(numerics):
            self._track(numerics)
        return numerics

    def _track(self, numerics: Numerics) -> None:
        self._incomplete[numerics.number] = numerics
        if len(self._incomplete) > MAX_INCOMPLETE:
            del self._incomplete[next(iter(self._incomplete))]

    def update(self, tape: MappedTape, batch: Batch) -> None:
        """Add the values stored since the last poll to the batch, and to the ended operations in the batch."""
        for number, before in list(self._incomplete.items()):
            words = tape.ring_words(number)
            if words is None:  # overwritten
                del self._incomplete[number]
                continue
            numerics = with_words(before, words)
            if numerics == before:
                continue
            self._incomplete[number] = numerics
            if _is_complete(numerics):
                del self._incomplete[number]
            if numerics.is_pending < before.is_pending or _has_output(numerics) > _has_output(before):
                batch.numerics.append(numerics)
        batch.ended = [self._with_current_numerics(tape, operation) for operation in batch.ended]

    def _with_current_numerics(self, tape: MappedTape, operation: Operation) -> Operation:
        """Return an ended operation with its current numerics."""
        numerics = operation.numerics
        if numerics is None or _is_complete(numerics):
            return operation
        words = tape.ring_words(numerics.number)
        return operation if words is None else msgspec.structs.replace(operation, numerics=with_words(numerics, words))


def _has_output(numerics: Numerics) -> bool:
    return numerics.output_checksum is not None or numerics.unseen_output is not None


def _is_complete(numerics: Numerics) -> bool:
    """Return whether no more values will be stored."""
    flags = int(numerics.flags)
    return not numerics.is_pending and (_has_output(numerics) or not flags & (_COMPARABLE | _PARAMETERS))
