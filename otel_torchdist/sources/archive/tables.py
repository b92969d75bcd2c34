"""Sparse tables of a segment: sizes and parents of checkpoint stages, remote calls, uneven splits."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from otel_torchdist.model.history import Activity
from otel_torchdist.model.kinds import CallMode
from otel_torchdist.model.operations import Splits
from otel_torchdist.model.remote_calls import RemoteCall
from otel_torchdist.sources.archive.columns import DamagedSegmentError, pack, unpack
from otel_torchdist.sources.archive.segment import Segment
from otel_torchdist.tape.layout import MAX_NUMBER, MAX_TIME_NS

# Most activities, such as optimizer steps, have neither sizes nor a remote call. Two tables hold these fields, with
# rows only for activities that have them, by activity number. They follow the splits. Older segments lack them.

SPARSE_COLUMNS: Final = ("parent", "message_bytes", "files", "storage", "explanation")
CALL_COLUMNS: Final = (
    "worker", "worker_name", "call_site", "mode", "caller_nonce", "caller_number", "caller_step", "returned_ns",
    "is_waited_for",
)  # fmt: skip
_WORD: Final = 1 << 64
_MODES: Final = frozenset(map(int, CallMode))


def with_sparse_fields(activities: Sequence[Activity]) -> list[Activity]:
    """Return the activities with at least one of `SPARSE_COLUMNS`."""
    return [activity for activity in activities if any(getattr(activity, column) for column in SPARSE_COLUMNS)]


def with_calls(activities: Sequence[Activity]) -> list[tuple[Activity, RemoteCall]]:
    """Return the activities with a remote call, and the call."""
    return [(activity, activity.call) for activity in activities if activity.call is not None]


def names_of(activity: Activity) -> Iterator[int]:
    """Yield the ids of the names that an activity refers to."""
    yield from (activity.detail, activity.failure, activity.storage, activity.explanation)
    if activity.call is not None:
        yield from (activity.call.worker_name, activity.call.call_site)


def pack_sparse_fields(activities: Sequence[Activity]) -> Iterator[bytes]:
    """Pack the tables of sparse fields and of remote calls."""
    having_fields = with_sparse_fields(activities)
    yield pack([activity.number for activity in having_fields], grows=True)
    for column in SPARSE_COLUMNS:
        yield pack([getattr(activity, column) for activity in having_fields], grows=column == "parent")
    calls = with_calls(activities)
    yield pack([activity.number for activity, _ in calls], grows=True)
    rows = [_row_of(activity, call) for activity, call in calls]
    for index in range(len(CALL_COLUMNS)):
        yield pack([row[index] for row in rows])


def _row_of(activity: Activity, call: RemoteCall) -> tuple[int, ...]:
    returned = 0 if call.returned_ns is None else max(call.returned_ns - activity.entered_ns, 0) + 1
    nonce = call.caller_nonce - _WORD if call.caller_nonce >= _WORD // 2 else call.caller_nonce  # columns are signed
    return (
        call.worker, call.worker_name, call.call_site, int(call.mode), nonce, call.caller_number, call.caller_step,
        returned, int(call.is_waited_for),
    )  # fmt: skip


class SparseFields:
    """The fields and remote calls that few activities have, by activity number."""

    def __init__(self, fields: Mapping[int, tuple[int, ...]], calls: Mapping[int, tuple[int, ...]]) -> None:
        self._fields = fields
        self._calls = calls

    @classmethod
    def unpacked(cls, view: memoryview, offset: int, field_rows: int, call_rows: int) -> SparseFields:
        """Unpack both tables.

        Args:
            view: The segment's uncompressed body.
            offset: Offset of the tables.
            field_rows: Number of activities with sparse fields.
            call_rows: Number of activities with a remote call.

        Raises:
            DamagedSegmentError: They are truncated, or contain impossible numbers.
        """
        fields, offset = _table(view, offset, field_rows, len(SPARSE_COLUMNS))
        calls, _ = _table(view, offset, call_rows, len(CALL_COLUMNS))
        if any(value < 0 for row in fields.values() for value in row):
            raise DamagedSegmentError("an activity has an impossible size")
        if any(
            row[3] not in _MODES or not 0 <= row[7] <= MAX_TIME_NS or min(row[1], row[2], row[5], row[6]) < 0
            for row in calls.values()
        ):
            raise DamagedSegmentError("a remote call has an impossible number")
        return cls(fields, calls)

    def added_to(self, activity: Activity) -> Activity:
        """Return the activity with its sparse fields and remote call; the same object if it has neither."""
        row, call = self._fields.get(activity.number), self._calls.get(activity.number)
        if row is None and call is None:
            return activity
        fields = dict(zip(SPARSE_COLUMNS, row, strict=True)) if row is not None else {}
        return msgspec.structs.replace(
            activity, **fields, call=_call_of(activity.entered_ns, call) if call is not None else None
        )


def _call_of(entered_ns: int, row: tuple[int, ...]) -> RemoteCall:
    worker, worker_name, call_site, mode, nonce, number, step, returned, is_waited_for = row
    return RemoteCall(
        worker, worker_name, call_site, CallMode(mode), nonce % _WORD, number, step,
        entered_ns + returned - 1 if returned else None, bool(is_waited_for),
    )  # fmt: skip


def _table(view: memoryview, offset: int, rows: int, columns: int) -> tuple[dict[int, tuple[int, ...]], int]:
    numbers, offset = unpack(view, offset, rows)
    unpacked: list[array[int]] = []
    for _ in range(columns):
        column, offset = unpack(view, offset, rows)
        unpacked.append(column)
    return dict(zip(numbers, zip(*unpacked, strict=True), strict=True)), offset


SPLIT_COLUMNS: Final = ("number", "largest", "received", "members")
"""One row for each exchange. One more column, of parts, holds the bytes that each exchange sent to each member."""
MAX_PARTS: Final = 1 << 20
"""Upper bound on the parts in a segment."""


def splits_of(segment: Segment) -> list[tuple[int, Splits]]:
    """Return the splits of uneven exchanges, with their operation numbers. At most `MAX_PARTS` sizes are kept."""
    numbered: list[tuple[int, Splits]] = []
    remaining = MAX_PARTS
    for operation in (*segment.ended, *segment.open):
        if operation.splits is not None:
            remaining -= len(operation.splits.sent)
            numbered.append(
                (operation.number, operation.splits if remaining >= 0 else replace(operation.splits, sent=()))
            )
    return numbered


def pack_splits(splits: Sequence[tuple[int, Splits]]) -> Iterator[bytes]:
    """Pack the table of uneven exchanges."""
    yield pack([number for number, _ in splits], grows=True)
    yield pack([exchange.largest for _, exchange in splits])
    yield pack([exchange.received for _, exchange in splits])
    yield pack([len(exchange.sent) for _, exchange in splits])
    yield pack([part for _, exchange in splits for part in exchange.sent])


def unpack_splits(view: memoryview, offset: int, rows: int, count: int) -> tuple[dict[int, Splits], int]:
    """Unpack the table of uneven exchanges.

    Args:
        view: The segment's uncompressed body.
        offset: Offset of the columns.
        rows: Number of exchanges.
        count: Number of parts.

    Returns:
        The splits by operation number, and the offset of the next table.

    Raises:
        DamagedSegmentError: The columns contradict each other, or contain impossible numbers.
    """
    columns: list[array[int]] = []
    for _ in SPLIT_COLUMNS:
        column, offset = unpack(view, offset, rows)
        columns.append(column)
    parts, offset = unpack(view, offset, count)
    if any(not 0 <= value <= MAX_NUMBER for column in (*columns, parts) for value in column):
        raise DamagedSegmentError("a split has an impossible size")
    if sum(columns[3]) != len(parts):
        raise DamagedSegmentError("the parts of the splits do not match their counts")
    splits: dict[int, Splits] = {}
    first = 0
    for number, largest, received, members in zip(*columns, strict=True):
        splits[number] = Splits(tuple(parts[first : first + members]), largest, received)
        first += members
    return splits, offset
