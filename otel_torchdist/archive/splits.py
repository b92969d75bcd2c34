"""The splits of uneven exchanges in a segment: a table, and the parts of all of them in one more column."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from otel_torchdist.archive.columns import DamagedSegmentError, pack, unpack
from otel_torchdist.archive.model import Segment
from otel_torchdist.model.operations import Splits
from otel_torchdist.tape.layout import MAX_NUMBER

SPLIT_COLUMNS: Final = ("number", "largest", "received", "members")
"""By the number of their operation; what is sent to each member follows in one column."""
MAX_PARTS: Final = 1 << 20


def splits_of(segment: Segment) -> list[tuple[int, Splits]]:
    """The splits of uneven exchanges with the numbers of these; without the parts of some if there are too many."""
    found: list[tuple[int, Splits]] = []
    room = MAX_PARTS
    for operation in (*segment.ended, *segment.open):
        if operation.splits is not None:
            room -= len(operation.splits.sent)
            found.append((operation.number, operation.splits if room >= 0 else replace(operation.splits, sent=())))
    return found


def pack_splits(splits: Sequence[tuple[int, Splits]]) -> Iterator[bytes]:
    """Pack the columns."""
    yield pack([number for number, _ in splits], grows=True)
    yield pack([one.largest for _, one in splits])
    yield pack([one.received for _, one in splits])
    yield pack([len(one.sent) for _, one in splits])
    yield pack([part for _, one in splits for part in one.sent])


def unpack_splits(view: memoryview, offset: int, rows: int, count: int) -> tuple[dict[int, Splits], int]:
    """Unpack the columns.

    Args:
        view: Holds them.
        offset: Where they begin.
        rows: How many exchanges there are.
        count: How many parts these have together.

    Returns:
        The splits by the number of their operation, and where the next table begins.

    Raises:
        DamagedSegmentError: They do not fit together, or are impossible.
    """
    columns: list[array[int]] = []
    for _ in SPLIT_COLUMNS:
        column, offset = unpack(view, offset, rows)
        columns.append(column)
    parts, offset = unpack(view, offset, count)
    if any(not 0 <= value <= MAX_NUMBER for column in (*columns, parts) for value in column):
        raise DamagedSegmentError("splits of an impossible size")
    if sum(columns[3]) != len(parts):
        raise DamagedSegmentError("splits of other members than they have")
    found: dict[int, Splits] = {}
    first = 0
    for number, largest, received, members in zip(*columns, strict=True):
        found[number] = Splits(tuple(parts[first : first + members]), largest, received)
        first += members
    return found, offset
