"""Follows the records of operations' values on one tape, until the operation is read, and all of them are known."""

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

MAX_AWAITED: Final = 512
"""Records whose words are awaited; those of operations that are never waited for must not accumulate."""
_PARAMETERS: Final = int(NumericsFlag.PARAMETERS)
_COMPARABLE: Final = int(NumericsFlag.COMPARABLE)


class Values:
    """The records of one tape that are not complete."""

    def __init__(self) -> None:
        self._by_thread: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._awaited: dict[int, Numerics] = {}

    @property
    def are_pending(self) -> bool:
        """Whether there is a record whose operation has not been read."""
        return bool(self._by_thread)

    def add(self, number: int, fields: tuple[int, ...]) -> None:
        """Add a record; it replaces one of the same thread whose operation was not recorded.

        Raises:
            ValueError: It was taken at an impossible time or position.
        """
        check_position(number, *fields[:3])
        if fields[12] & _PARAMETERS:
            self._await(numerics_of(number, fields, ()))
            return
        self._by_thread[fields[10]] = (number, fields)

    def take(self, tape: MappedTape, operation: Sequence[int], batch: Batch) -> Numerics | None:
        """Return the values of an operation, and add them to the batch; None if none were recorded.

        Args:
            tape: The tape, of which the record is read again: its words came before the operation, but after itself.
            operation: The fields of the operation's payload.
            batch: What the poll has found.
        """
        found = self._by_thread.pop(operation[10], None)
        if found is None:
            return None
        number, fields = found
        if (fields[2], fields[4]) != (operation[2], operation[4]):  # sequence and group
            return None
        numerics = numerics_of(number, fields, tape.ring_words(number) or ())
        batch.numerics.append(numerics)
        if not _is_complete(numerics):
            self._await(numerics)
        return numerics

    def _await(self, numerics: Numerics) -> None:
        self._awaited[numerics.number] = numerics
        if len(self._awaited) > MAX_AWAITED:
            del self._awaited[next(iter(self._awaited))]

    def read_again(self, tape: MappedTape, batch: Batch) -> None:
        """Add to the batch what has become known since the last poll, also to operations that have ended in it."""
        for number, before in list(self._awaited.items()):
            words = tape.ring_words(number)
            if words is None:  # overwritten
                del self._awaited[number]
                continue
            numerics = with_words(before, words)
            if numerics == before:
                continue
            self._awaited[number] = numerics
            if _is_complete(numerics):
                del self._awaited[number]
            if numerics.is_pending < before.is_pending or _has_output(numerics) > _has_output(before):
                batch.numerics.append(numerics)
        batch.ended = [self._renewed(tape, operation) for operation in batch.ended]

    def _renewed(self, tape: MappedTape, operation: Operation) -> Operation:
        """Return an operation that has ended, with what is known of its values by now."""
        known = operation.numerics
        if known is None or _is_complete(known):
            return operation
        words = tape.ring_words(known.number)
        return operation if words is None else msgspec.structs.replace(operation, numerics=with_words(known, words))


def _has_output(numerics: Numerics) -> bool:
    return numerics.output_checksum is not None or numerics.unseen_output is not None


def _is_complete(numerics: Numerics) -> bool:
    """Whether nothing more will become known."""
    flags = int(numerics.flags)
    return not numerics.is_pending and (_has_output(numerics) or not flags & (_COMPARABLE | _PARAMETERS))
