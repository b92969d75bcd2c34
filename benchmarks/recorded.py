"""Checks of the tapes that a benchmark has written: figures of calls that were not recorded would mean nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from otel_torchdist.job.directory import tapes_in
from otel_torchdist.tape.layout import RecordKind
from otel_torchdist.tape.reading.reader import TapeReader


def collectives_on_tapes(directory: Path) -> list[int]:
    """How many collectives each tape of a directory has seen, whatever is still in its ring: sequences, summed."""
    return [_collectives(path) for path in tapes_in(directory)]


def insist(expected: object, found: object, what: str) -> None:
    """Compare what was made with what was recorded or exported.

    Raises:
        RuntimeError: They differ.
    """
    if found != expected:
        raise RuntimeError(f"{found} of {expected} {what}: the figures mean nothing")


def _collectives(path: Path) -> int:
    newest: Counter[int] = Counter()
    tape = TapeReader(path)
    try:
        for operation in tape.poll().entered:
            if operation.kind is RecordKind.OPERATION:
                newest[operation.group] = max(newest[operation.group], operation.sequence)
    finally:
        tape.close()
    return newest.total()
