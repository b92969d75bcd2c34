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

# Most activities, such as optimizer steps, have neither sizes nor a remote call. Two tables behind the splits hold
# rows only for activities with such fields, by activity number. Older segments lack these tables.

FACT_COLUMNS: Final = ("parent", "message_bytes", "files", "storage", "explanation")
CALL_COLUMNS: Final = (
    "worker", "worker_name", "call_site", "mode", "caller_nonce", "caller_number", "caller_step", "returned_ns",
    "is_waited_for",
)  # fmt: skip
_WORD: Final = 1 << 64
_MODES: Final = frozenset(map(int, CallMode))


def with_facts(activities: Sequence[Activity]) -> list[Activity]:
    """Return the activities with a row in the first table."""
    return [activity for activity in activities if any(getattr(activity, column) for column in FACT_COLUMNS)]


def with_calls(activities: Sequence[Activity]) -> list[tuple[Activity, RemoteCall]]:
    """Return the activities with a row in the second table, and their remote calls."""
    return [(activity, activity.call) for activity in activities if activity.call is not None]


def names_of(activity: Activity) -> Iterator[int]:
    """Yield the ids of the names that an activity refers to."""
    yield from (activity.detail, activity.failure, activity.storage, activity.explanation)
    if activity.call is not None:
        yield from (activity.call.worker_name, activity.call.call_site)


def pack_facts(activities: Sequence[Activity]) -> Iterator[bytes]:
    """Pack both tables."""
    facts = with_facts(activities)
    yield pack([activity.number for activity in facts], grows=True)
    for column in FACT_COLUMNS:
        yield pack([getattr(activity, column) for activity in facts], grows=column == "parent")
    calls = with_calls(activities)
    yield pack([activity.number for activity, _ in calls], grows=True)
    rows = [_row_of(activity, call) for activity, call in calls]
    for place in range(len(CALL_COLUMNS)):
        yield pack([row[place] for row in rows])


def _row_of(activity: Activity, call: RemoteCall) -> tuple[int, ...]:
    returned = 0 if call.returned_ns is None else max(call.returned_ns - activity.entered_ns, 0) + 1
    nonce = call.caller_nonce - _WORD if call.caller_nonce >= _WORD // 2 else call.caller_nonce  # columns are signed
    return (
        call.worker, call.worker_name, call.call_site, int(call.mode), nonce, call.caller_number, call.caller_step,
        returned, int(call.is_waited_for),
    )  # fmt: skip


class Facts:
    """Further fields and remote calls of activities, by activity number."""

    def __init__(self, facts: Mapping[int, tuple[int, ...]], calls: Mapping[int, tuple[int, ...]]) -> None:
        self._facts = facts
        self._calls = calls

    @classmethod
    def unpacked(cls, view: memoryview, offset: int, facts: int, calls: int) -> Facts:
        """Unpack both tables.

        Args:
            view: The segment's uncompressed body.
            offset: Offset of the tables.
            facts: Rows of the first table.
            calls: Rows of the second table.

        Raises:
            DamagedSegmentError: They are truncated, or contain impossible numbers.
        """
        fact_rows, offset = _table(view, offset, facts, len(FACT_COLUMNS))
        call_rows, _ = _table(view, offset, calls, len(CALL_COLUMNS))
        if any(value < 0 for row in fact_rows.values() for value in row):
            raise DamagedSegmentError("an activity has an impossible size")
        if any(
            row[3] not in _MODES or not 0 <= row[7] <= MAX_TIME_NS or min(row[1], row[2], row[5], row[6]) < 0
            for row in call_rows.values()
        ):
            raise DamagedSegmentError("a remote call is impossible")
        return cls(fact_rows, call_rows)

    def added_to(self, activity: Activity) -> Activity:
        """Return the activity with its further fields and remote call; the same object without any."""
        facts, call = self._facts.get(activity.number), self._calls.get(activity.number)
        if facts is None and call is None:
            return activity
        fields = dict(zip(FACT_COLUMNS, facts, strict=True)) if facts is not None else {}
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
"""Keyed by operation number. One more column holds the bytes sent to each member, of all exchanges."""
MAX_PARTS: Final = 1 << 20


def splits_of(segment: Segment) -> list[tuple[int, Splits]]:
    """Return the splits of uneven exchanges, with their operation numbers. Parts beyond `MAX_PARTS` are left out."""
    numbered: list[tuple[int, Splits]] = []
    room = MAX_PARTS
    for operation in (*segment.ended, *segment.open):
        if operation.splits is not None:
            room -= len(operation.splits.sent)
            numbered.append((operation.number, operation.splits if room >= 0 else replace(operation.splits, sent=())))
    return numbered


def pack_splits(splits: Sequence[tuple[int, Splits]]) -> Iterator[bytes]:
    """Pack the columns."""
    yield pack([number for number, _ in splits], grows=True)
    yield pack([exchange.largest for _, exchange in splits])
    yield pack([exchange.received for _, exchange in splits])
    yield pack([len(exchange.sent) for _, exchange in splits])
    yield pack([part for _, exchange in splits for part in exchange.sent])


def unpack_splits(view: memoryview, offset: int, rows: int, count: int) -> tuple[dict[int, Splits], int]:
    """Unpack the columns.

    Args:
        view: The segment's uncompressed body.
        offset: Offset of the columns.
        rows: Number of exchanges.
        count: Number of parts of all exchanges.

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
