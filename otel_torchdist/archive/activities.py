"""What activities of a segment have beyond a time and a name: sizes and parents of checkpoints, ends of remote calls.

Most activities, optimizers' steps above all, have none of it. So there is a row only for those that do, by the number
of their activity, in tables of their own behind the splits. Segments that were written before have no such rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from otel_torchdist.archive.columns import DamagedSegmentError, pack, unpack
from otel_torchdist.model.activities import Activity
from otel_torchdist.model.kinds import CallMode
from otel_torchdist.model.remote_calls import RemoteCall
from otel_torchdist.tape.layout import MAX_TIME_NS

FACT_COLUMNS: Final = ("parent", "message_bytes", "files", "storage", "explanation")
CALL_COLUMNS: Final = (
    "worker", "worker_name", "call_site", "mode", "caller_nonce", "caller_number", "caller_step", "returned_ns",
    "is_waited_for",
)  # fmt: skip
_WORD: Final = 1 << 64
_MODES: Final = frozenset(map(int, CallMode))


def with_facts(activities: Sequence[Activity]) -> list[Activity]:
    """Those that have a row in the first table."""
    return [one for one in activities if any(getattr(one, column) for column in FACT_COLUMNS)]


def with_calls(activities: Sequence[Activity]) -> list[tuple[Activity, RemoteCall]]:
    """Those that have a row in the second one."""
    return [(one, one.call) for one in activities if one.call is not None]


def names_of(activity: Activity) -> Iterator[int]:
    """Ids of the names that an activity refers to."""
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
    """What is known of activities, by their number."""

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
        """The activity with what is known of it; the same object if that is nothing."""
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
