"""Follows the records of operations' values on one tape, until the operation is read, or its outputs are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from otel_torchdist.tape.mapped import MappedTape
from otel_torchdist.tape.numerics import Numerics, NumericsFlag, numerics_of
from otel_torchdist.tape.reading.batch import Batch
from otel_torchdist.tape.records import Operation

MAX_AWAITED: Final = 256
"""Records whose outputs are awaited; those of operations that are never waited for must not accumulate."""
_PARAMETERS: Final = int(NumericsFlag.PARAMETERS)
_AWAITED: Final = int(NumericsFlag.SAMPLED | NumericsFlag.COMPARABLE)


class Values:
    """The records of one tape that are not complete."""

    def __init__(self) -> None:
        self._by_thread: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._awaited: dict[int, tuple[int, ...]] = {}

    @property
    def are_pending(self) -> bool:
        """Whether there is a record whose operation has not been read."""
        return bool(self._by_thread)

    def add(self, number: int, fields: tuple[int, ...]) -> None:
        """Add a record; it replaces one of the same thread whose operation was not recorded."""
        if fields[12] & _PARAMETERS:
            self._await(number, fields)
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
        if int(numerics.flags) & _AWAITED == _AWAITED and numerics.output_checksum is None:
            self._await(number, fields)
        return numerics

    def _await(self, number: int, fields: tuple[int, ...]) -> None:
        self._awaited[number] = fields
        if len(self._awaited) > MAX_AWAITED:
            del self._awaited[next(iter(self._awaited))]

    def read_again(self, tape: MappedTape, batch: Batch) -> None:
        """Add to the batch what has become complete since the last poll, also to operations that have ended in it."""
        complete: dict[int, Numerics] = {}
        for number, fields in list(self._awaited.items()):
            words = tape.ring_words(number)
            numerics = numerics_of(number, fields, words) if words is not None else None
            if numerics is None:  # overwritten
                del self._awaited[number]
            elif numerics.output_checksum is not None:
                del self._awaited[number]
                batch.numerics.append(numerics)
                complete[number] = numerics
        if complete:
            batch.ended = [_with(operation, complete) for operation in batch.ended]


def _with(operation: Operation, complete: Mapping[int, Numerics]) -> Operation:
    known = complete.get(operation.numerics.number) if operation.numerics is not None else None
    return operation if known is None else msgspec.structs.replace(operation, numerics=known)
