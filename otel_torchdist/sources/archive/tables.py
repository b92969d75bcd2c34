"""Tables of a segment besides its rows: sizes and parents of checkpoints, ends of remote calls, uneven splits."""

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

# Most activities, optimizers' steps above all, have neither sizes nor a remote call. So only those that have are rows,
# by the number of their activity, of two tables behind the splits. Older segments have no such tables.

FACT_COLUMNS: Final = ("parent", "message_bytes", "files", "storage", "explanation")
CALL_COLUMNS: Final = (
    "worker", "worker_name", "call_site", "mode", "caller_nonce", "caller_number", "caller_step", "returned_ns",
    "is_waited_for",
)  # fmt: skip
_WORD: Final = 1 << 64
_MODES: Final = frozenset(map(int, CallMode))


def with_facts(activities: Sequence[Activity]) -> list[Activity]:
    """Return the activities that have a row in the first table."""
    return [one for one in activities if any(getattr(one, column) for column in FACT_COLUMNS)]


def with_calls(activities: Sequence[Activity]) -> list[tuple[Activity, RemoteCall]]:
    """Return the activities that have a row in the second table, with their calls."""
    return [(one, one.call) for one in activities if one.call is not None]


def names_of(activity: Activity) -> Iterator[int]:
    """Yield the ids of the names that an activity refers to."""
    yield from (activity.detail, activity.failure, activity.storage, activity.explanation)
    if activity.call is not None:
        yield from (activity.call.worker_name, activity.call.call_site)


def pack_facts(activities: Sequence[Activity]) -> Iterator[bytes]:
    """Pack both tables."""
    facts = with_facts(activities)
    yield pack([one.number for one in facts], grows=True)
    for column in FACT_COLUMNS:
        yield pack([getattr(one, column) for one in facts], grows=column == "parent")
    calls = with_calls(activities)
    yield pack([one.number for one, _ in calls], grows=True)
    rows = [_row_of(one, call) for one, call in calls]
    for place in range(len(CALL_COLUMNS)):
        yield pack([row[place] for row in rows])


def _row_of(activity: Activity, call: RemoteCall) -> tuple[int, ...]:
    returned = 0 if call.returned_ns is None else max(call.returned_ns - activity.entered_ns, 0) + 1
    nonce = call.caller_nonce - _WORD if call.caller_nonce >= _WORD // 2 else call.caller_nonce  # columns have a sign
    return (
        call.worker, call.worker_name, call.call_site, int(call.mode), nonce, call.caller_number, call.caller_step,
        returned, int(call.is_waited_for),
    )  # fmt: skip


class Facts:
    """Facts of activities, by the activity's number."""

    def __init__(self, facts: Mapping[int, tuple[int, ...]], calls: Mapping[int, tuple[int, ...]]) -> None:
        self._facts = facts
        self._calls = calls

    @classmethod
    def unpacked(cls, view: memoryview, offset: int, facts: int, calls: int) -> Facts:
        """Unpack both tables.

        Args:
            view: Holds them.
            offset: Where they begin.
            facts: How many rows the first one has.
            calls: How many rows the second one has.

        Raises:
            DamagedSegmentError: They are cut off, or no tape has such numbers.
        """
        of_facts, offset = _table(view, offset, facts, len(FACT_COLUMNS))
        of_calls, _ = _table(view, offset, calls, len(CALL_COLUMNS))
        if any(value < 0 for row in of_facts.values() for value in row):
            raise DamagedSegmentError("an activity of an impossible size")
        if any(
            row[3] not in _MODES or not 0 <= row[7] <= MAX_TIME_NS or min(row[1], row[2], row[5], row[6]) < 0
            for row in of_calls.values()
        ):
            raise DamagedSegmentError("a remote call that no tape has")
        return cls(of_facts, of_calls)

    def added_to(self, activity: Activity) -> Activity:
        """Return the activity with what is known of it; the same object if that is nothing."""
        facts, call = self._facts.get(activity.number), self._calls.get(activity.number)
        if facts is None and call is None:
            return activity
        known = dict(zip(FACT_COLUMNS, facts, strict=True)) if facts is not None else {}
        return msgspec.structs.replace(
            activity, **known, call=_call_of(activity.entered_ns, call) if call is not None else None
        )


def _call_of(entered_ns: int, row: tuple[int, ...]) -> RemoteCall:
    worker, worker_name, call_site, mode, nonce, number, step, returned, is_waited_for = row
    return RemoteCall(
        worker, worker_name, call_site, CallMode(mode), nonce % _WORD, number, step,
        entered_ns + returned - 1 if returned else None, bool(is_waited_for),
    )  # fmt: skip


def _table(view: memoryview, offset: int, rows: int, columns: int) -> tuple[dict[int, tuple[int, ...]], int]:
    numbers, offset = unpack(view, offset, rows)
    found: list[array[int]] = []
    for _ in range(columns):
        column, offset = unpack(view, offset, rows)
        found.append(column)
    return dict(zip(numbers, zip(*found, strict=True), strict=True)), offset


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
