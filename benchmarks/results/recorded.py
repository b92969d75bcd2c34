"""Checks that a benchmark's tapes are complete: figures for calls that were not recorded would mean nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from otel_torchdist.model.kinds import Flag, RecordKind
from otel_torchdist.model.operations import Operation
from otel_torchdist.node.job.directory import tapes_in
from otel_torchdist.tape.reading.reader import TapeReader


def operations_on_tapes(directory: Path) -> list[int]:
    """Return the number of operations of each tape in a directory, by sequences, because the ring may have wrapped."""
    counted = OperationsOnTapes(directory)
    counted.look()
    return counted.counts


class OperationsOnTapes:
    """Counter of the operations on tapes, even if the ring wraps between operations of different sequences."""

    def __init__(self, directory: Path) -> None:
        """Count the operations on the tapes in a directory."""
        self._directory = directory
        self._newest: dict[Path, Counter[tuple[int, ...]]] = {}

    def look(self) -> None:
        """Read the sequences reached so far. Call this once for each kind, while one of its records is in the ring."""
        for path in tapes_in(self._directory):
            _note_newest(path, self._newest.setdefault(path, Counter()))

    @property
    def counts(self) -> list[int]:
        """Number of operations of each tape."""
        return [newest.total() for newest in self._newest.values()]


def require_equal(expected: object, measured: object, noun: str) -> None:
    """Raise if the number of recorded or exported items is not the expected one.

    Raises:
        RuntimeError: The numbers differ.
    """
    if measured != expected:
        raise RuntimeError(f"{measured} of {expected} {noun}: the figures mean nothing")


def _note_newest(path: Path, newest: Counter[tuple[int, ...]]) -> None:
    tape = TapeReader(path)
    try:
        for operation in tape.poll().entered:
            if operation.kind is RecordKind.OPERATION:
                counted = _counted_with(operation)
                newest[counted] = max(newest[counted], operation.sequence)
    finally:
        tape.close()


def _counted_with(operation: Operation) -> tuple[int, ...]:
    """Return the key of the sequence that an operation belongs to."""
    if Flag.POINT_TO_POINT in operation.flags:
        return operation.group, operation.signature, operation.peer, operation.tag
    return (operation.group,)
