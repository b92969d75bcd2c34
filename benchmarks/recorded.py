"""Checks of the tapes that a benchmark has written: figures of calls that were not recorded would mean nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from otel_torchdist.job.directory import tapes_in
from otel_torchdist.tape.layout import Flag, RecordKind
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.records import Operation


def operations_on_tapes(directory: Path) -> list[int]:
    """How many operations each tape of a directory has seen, whatever is still in its ring: sequences, summed."""
    return [_operations(path) for path in tapes_in(directory)]


def insist(expected: object, found: object, what: str) -> None:
    """Compare what was made with what was recorded or exported.

    Raises:
        RuntimeError: They differ.
    """
    if found != expected:
        raise RuntimeError(f"{found} of {expected} {what}: the figures mean nothing")


def _operations(path: Path) -> int:
    newest: Counter[tuple[int, ...]] = Counter()
    tape = TapeReader(path)
    try:
        for operation in tape.poll().entered:
            if operation.kind is RecordKind.OPERATION:
                counted = _counted_with(operation)
                newest[counted] = max(newest[counted], operation.sequence)
    finally:
        tape.close()
    return newest.total()


def _counted_with(operation: Operation) -> tuple[int, ...]:
    """What the operations have in common whose sequence it is part of."""
    if Flag.POINT_TO_POINT in operation.flags:
        return operation.group, operation.signature, operation.peer, operation.tag
    return (operation.group,)
