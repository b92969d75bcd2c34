"""Calls of ranks in columns of numbers: a job's millions of calls do not fit in memory as objects.

Every analysis reads these columns. This module alone interprets records: when a rank arrived at a call, whether the
call blocked it, whether its duration is known.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from otel_torchdist.model.calls import GroupView, OperationView
from otel_torchdist.model.history import Activity, RankHistory
from otel_torchdist.model.kinds import ActivityKind, Flag, Phase, RecordKind
from otel_torchdist.model.operations import AWAITED, BLOCKING, EXACT, RAISED, UNMET, Operation, Splits, StepMark
from otel_torchdist.sources.history.call_kinds import (
    ARRIVED,
    RETURNED,
    STARTED,
    TIMED,
    CallKind,
    GroupPool,
    Kinds,
    RankChannel,
    SharedFields,
)

UNKNOWN: Final = -1
"""Stands for a time that was not recorded."""
OPEN: Final = -2
"""Stands for the end of an operation in flight."""
_ASYNC: Final = int(Flag.ASYNC)
_ON_DEVICE: Final = int(Flag.ON_DEVICE)
_END_UNOBSERVED: Final = int(Flag.END_BY_WAIT | Flag.COALESCED)
_AWAITED: Final = frozenset(map(int, AWAITED))
_BLOCKING: Final = frozenset(map(int, BLOCKING))
_EXACT: Final = frozenset(map(int, EXACT))
_RAISED: Final = frozenset(map(int, RAISED))
_UNMET: Final = frozenset(map(int, UNMET))


class RankCalls:
    """The history of one rank in columns. A call has the same index in every column.

    Times are nanoseconds by the rank's clock. The attributes from `kind` to `known_times` are columns.

    Attributes:
        rank: Global rank.
        world_size: Ranks of the job; 0 if unknown.
        host: Host name, or ''.
        clock: Name of the rank's clock; '' if unknown. Times are comparable only within one known clock.
        wall_offset_ns: Add it to a time for nanoseconds since the epoch.
        lost: Number of calls that are missing from the source.
        until_ns: Last time at which the rank was known to be alive; 0 if unknown.
        groups: The groups of its calls, by key.
        known_groups: All groups in its source, with or without calls.
        steps: Its step marks, ascending. Each records the end of a step.
        first_ns: Entry of the first call; None without calls.
        last_entered_ns: Entry of the last call, or 0.
        last_ns: The last entry or end of a call, or 0.
        kind: Index in `kinds`.
        channel: Index in `channels`.
        sequence: Position in the channel.
        step: Number of the rank's step.
        started: Start on the device if recorded, otherwise entry of the call.
        returned: Return of the call; `UNKNOWN` for synchronous calls.
        wait_entered: Start of the wait for the operation; `UNKNOWN` without a wait.
        wait_returned: Return of that wait; `UNKNOWN` if only the end of the operation was recorded.
        ended: End of the operation; `OPEN` while in flight.
        how: How the end is known, a `How`; 0 while in flight.
        known_times: Bits `ARRIVED`, `ARRIVED_ALONE`, `TIMED`, …: which of the times are known, and how precisely.
        splits: Splits of uneven exchanges, by index of the call.
    """

    def __init__(self, history: RankHistory, groups: GroupPool | None = None) -> None:
        """Fill the columns.

        Args:
            history: The calls of the rank.
            groups: Groups shared with other ranks.
        """
        self.rank: Final = history.rank
        self.world_size: Final = history.world_size
        self.host: Final = history.host
        self.clock: Final = history.clock
        self.wall_offset_ns: Final = history.wall_offset_ns
        self.lost: Final = history.lost
        self.until_ns: Final = history.until_ns
        self.known_groups: Sequence[GroupView] = history.groups
        self.steps: Sequence[StepMark] = history.steps
        self.activities: Sequence[Activity] = history.activities
        self.groups: dict[str, GroupView] = {}
        self.kinds: list[CallKind] = []
        self.channels: list[RankChannel] = []
        self.splits: dict[int, Splits] = {}
        self.first_ns: int | None = None
        self.last_entered_ns = 0
        self.last_ns = 0
        self._create_columns()
        self._fill(history.operations, groups or GroupPool())

    def _create_columns(self) -> None:
        self.kind, self.channel = array("i"), array("i")
        self.sequence, self.step = array("q"), array("q")
        self.started, self.returned, self.wait_entered, self.wait_returned, self.ended = (array("q") for _ in range(5))
        self.how, self.known_times = array("b"), array("b")

    def __len__(self) -> int:
        """Return the number of calls."""
        return len(self.kind)

    def _fill(self, operations: Sequence[OperationView], groups: GroupPool) -> None:
        if not operations:
            return
        records = [view.record for view in operations]
        self._fill_kinds(operations, records, Kinds(groups))
        self.sequence = array("q", [call.sequence for call in records])
        self.step = array("q", [call.step for call in records])
        entered = [call.entered_ns for call in records]
        ends = [(OPEN if call.completed_ns is None else call.completed_ns) for call in records]
        self.started = array("q", [call.entered_ns if call.started_ns is None else call.started_ns for call in records])
        self.returned = array("q", [UNKNOWN if call.returned_ns is None else call.returned_ns for call in records])
        self.wait_entered = array(
            "q", [UNKNOWN if call.wait_entered_ns is None else call.wait_entered_ns for call in records]
        )
        self.wait_returned = array(
            "q", [UNKNOWN if call.wait_returned_ns is None else call.wait_returned_ns for call in records]
        )
        self.ended = array("q", ends)
        self.splits = {index: call.splits for index, call in enumerate(records) if call.splits is not None}
        self.first_ns, self.last_entered_ns = min(entered), max(entered)
        newest = [
            entered_ns if ended_ns == OPEN else ended_ns for entered_ns, ended_ns in zip(entered, ends, strict=True)
        ]
        self.last_ns = max(newest)

    def _fill_kinds(self, operations: Sequence[OperationView], records: Sequence[Operation], kinds: Kinds) -> None:
        # Calls share the objects of their names: comparing addresses is much faster than comparing names.
        fields_by_key: dict[tuple[object, ...], SharedFields] = {}
        fields: list[SharedFields] = []
        for view, record in zip(operations, records, strict=True):
            key = (
                id(view.signature),
                id(view.group),
                id(view.call_site),
                view.name,
                view.label,
                view.failure,
                record.message_bytes,
                record.peer,
                record.tag,
                record.flags,
                record.phase,
                record.thread,
                record.kind,
                record.how,
                record.started_how,
                record.started_ns is None,
                record.returned_ns is None,
            )
            shared = fields_by_key.get(key)
            if shared is None:
                shared = fields_by_key[key] = kinds.fields_of(view)
            fields.append(shared)
        self.kind = array("i", [shared.kind for shared in fields])
        self.channel = array("i", [shared.channel for shared in fields])
        self.how = array("b", [shared.how for shared in fields])
        self.known_times = array("b", [shared.known_times for shared in fields])
        self.kinds, self.channels, self.groups = kinds.kinds, list(kinds.channels), kinds.groups

    def condense(self) -> None:
        """Drop data not needed to compare ranks: three columns, splits, steps, activities and unused groups."""
        self.drop("step", "returned", "wait_returned")
        self.known_groups, self.steps, self.activities = (), (), ()
        self.splits = {}

    def drop(self, *columns: str) -> None:
        """Empty columns that are not read any more."""
        for name in columns:
            column: array[int] = getattr(self, name)
            del column[:]

    def only(self, indices: Iterable[int]) -> RankCalls:
        """Return a copy that contains only the calls at these indices, in this order."""
        indices = array("i", indices)
        selected = copy.copy(self)
        for name in _COLUMNS:
            column: array[int] = getattr(self, name)
            setattr(selected, name, array(column.typecode, map(column.__getitem__, indices)))
        selected.splits = {nth: self.splits[index] for nth, index in enumerate(indices) if index in self.splits}
        return selected

    def has_arrived(self, index: int) -> bool:
        """Return whether `started` is the rank's arrival at a call, as its peers observe it."""
        return bool(self.known_times[index] & ARRIVED)

    def is_timed(self, index: int) -> bool:
        """Return whether a call has ended, and its times are precise enough for a duration."""
        return bool(self.known_times[index] & TIMED)

    def has_raised(self, index: int) -> bool:
        """Return whether a call has raised."""
        return self.how[index] in _RAISED

    def is_met(self, index: int) -> bool:
        """Return whether a call has ended, and its end proves that every rank it waits for has arrived."""
        return self.ended[index] != OPEN and self.how[index] not in _UNMET

    def in_flight(self) -> Iterator[tuple[int, int]]:
        """Yield start and end of the time in flight of each ended operation, if known."""
        are_operations = [kind.record_kind is RecordKind.OPERATION for kind in self.kinds]
        flags_of = [kind.flags for kind in self.kinds]
        columns = zip(self.kind, self.started, self.ended, self.how, self.known_times, strict=True)
        for index, (kind, started_ns, ended_ns, how, known_times) in enumerate(columns):
            if ended_ns == OPEN or how in _UNMET or not are_operations[kind]:
                continue
            flags, since_ns = flags_of[kind], started_ns
            if flags & _ON_DEVICE:
                since_ns = started_ns if known_times & STARTED else UNKNOWN
            elif flags & _END_UNOBSERVED and known_times & RETURNED:
                since_ns = self.wait_entered[index]
            if since_ns != UNKNOWN:
                yield since_ns, ended_ns

    def blocked_interval(self, index: int) -> tuple[int, int] | None:
        """Return start and end of the time that a call blocked its thread or device; None if none or unknown."""
        ended_ns, kind = self.ended[index], self.kinds[self.kind[index]]
        if ended_ns == OPEN:
            return None
        if kind.flags & _ON_DEVICE:
            is_blocking = self.how[index] in _EXACT and not kind.flags & _ASYNC and self.known_times[index] & STARTED
            return (self.started[index], ended_ns) if is_blocking else None
        wait_entered_ns, wait_returned_ns = self.wait_entered[index], self.wait_returned[index]
        if wait_entered_ns != UNKNOWN:
            end_ns = ended_ns if wait_returned_ns == UNKNOWN else wait_returned_ns
            return (wait_entered_ns, end_ns) if end_ns >= wait_entered_ns else None
        # A synchronous collective blocks from its call to its end.
        is_synchronous = not self.known_times[index] & RETURNED and self.how[index] in _BLOCKING
        return (self.started[index], ended_ns) if is_synchronous else None

    def wait_ns(self, index: int) -> int:
        """Return the duration of the wait for a call; `UNKNOWN` without a wait, or if it was not recorded."""
        # If the wait detected the end of the operation, its return is recorded only as that end.
        until_ns = self.ended[index] if self.how[index] in _AWAITED else self.wait_returned[index]
        since_ns = self.wait_entered[index]
        return max(until_ns - since_ns, 0) if UNKNOWN not in (since_ns, until_ns) else UNKNOWN

    def may_have_unrecorded_wait(self, index: int) -> bool:
        """Return whether torch may wait for a call without a record, as DDP does in C++ after a backward pass."""
        kind = self.kinds[self.kind[index]]
        is_async = bool(kind.flags & _ASYNC) and kind.phase is not Phase.OUTSIDE_BACKWARD
        return is_async and bool(self.known_times[index] & RETURNED) and self.wait_entered[index] == UNKNOWN

    def optimizer_starts(self) -> list[int]:
        """Return the start times of optimizer steps, ascending. All gradients are reduced by then."""
        kind = ActivityKind.OPTIMIZER_STEP
        return sorted(activity.entered_ns for activity in self.activities if activity.kind is kind)

    def by_channel(self) -> list[array[int]]:
        """Return the indices of the calls of each channel, in order of entry."""
        by_channel = [array("i") for _ in self.channels]
        append = [indices.append for indices in by_channel]
        for index, channel in enumerate(self.channel):
            append[channel](index)
        return by_channel


_COLUMNS: Final = (
    *("kind", "channel", "sequence", "step"),
    *("started", "returned", "wait_entered", "wait_returned", "ended", "how", "known_times"),
)


class CallTable:
    """The calls of all ranks.

    Attributes:
        ranks: Columns of each rank, condensed.
    """

    def __init__(self) -> None:
        """Create an empty table."""
        self.ranks: dict[int, RankCalls] = {}
        self._groups = GroupPool()

    def columns_of(self, history: RankHistory) -> RankCalls:
        """Return a history as columns, without adding them to the table."""
        return RankCalls(history, self._groups)

    def keep(self, calls: RankCalls) -> None:
        """Condense the calls of a rank and add them to the table."""
        calls.condense()
        self.ranks[calls.rank] = calls


def table_of(histories: Iterable[RankHistory]) -> CallTable:
    """Reduce the histories of all ranks to columns, one history at a time."""
    table = CallTable()
    for history in histories:
        table.keep(table.columns_of(history))
    return table
