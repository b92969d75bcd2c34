"""The calls of ranks in columns of numbers: a job's millions of calls do not fit in memory as objects.

Every analysis reads these columns. What a record shows of a call (when its rank arrived, whether the call held it up,
whether its duration is known) is decided here, once.
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
OPEN: Final = -2
_ASYNC: Final = int(Flag.ASYNC)
_ON_DEVICE: Final = int(Flag.ON_DEVICE)
_END_UNSEEN: Final = int(Flag.END_BY_WAIT | Flag.COALESCED)
_AWAITED: Final = frozenset(map(int, AWAITED))
_BLOCKING: Final = frozenset(map(int, BLOCKING))
_EXACT: Final = frozenset(map(int, EXACT))
_RAISED: Final = frozenset(map(int, RAISED))
_UNMET: Final = frozenset(map(int, UNMET))


class RankCalls:
    """The history of one rank, with its calls in columns: entry `n` of each column is of call `n`.

    Times are nanoseconds of the rank's own clock.

    Attributes:
        rank: Global rank.
        world_size: Ranks of the job; 0 if unknown.
        host: Host name, or ''.
        clock: Name of the rank's clock; '' if unknown. Never compare times of different clocks, or of unknown ones.
        wall_offset_ns: Add it to a time for nanoseconds since the epoch.
        lost: Number of calls that are known to be missing.
        until_ns: The rank's last sign of life; 0 if unknown.
        groups: The groups of its calls, by key.
        known_groups: All groups that its source knows, used or not.
        steps: The ends of its steps, ascending.
        activities: Its activities.
        first_ns: Entry of the first call; None without calls.
        last_entered_ns: Entry of the last call, or 0.
        last_ns: The last entry or end of a call, or 0.
        kinds: The kinds of its calls.
        channels: The channels of its calls.
        kind: Index in `kinds`.
        channel: Index in `channels`.
        sequence: Position in the channel.
        step: The rank's step.
        begun: Entry of the call, or its start on the device where that is recorded.
        returned: When the call returned; `UNKNOWN` for synchronous ones.
        waited: When a wait for the call began; `UNKNOWN` without one.
        resumed: When that wait returned; `UNKNOWN` if it is not recorded apart from the end.
        ended: When the operation ended; `OPEN` if it has not.
        how: How the end is known, a `How`; 0 while it is open.
        known: Which times are known well: `ARRIVED`, `ARRIVED_ALONE`, `TIMED`.
        splits: How uneven exchanges are split, by call.
    """

    def __init__(self, history: RankHistory, groups: GroupPool | None = None) -> None:
        """Fill the columns.

        Args:
            history: The calls of the rank.
            groups: Groups of other ranks, which are shared where they are equal.
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
        self._begin_columns()
        self._fill(history.operations, groups or GroupPool())

    def _begin_columns(self) -> None:
        self.kind, self.channel = array("i"), array("i")
        self.sequence, self.step = array("q"), array("q")
        self.begun, self.returned, self.waited, self.resumed, self.ended = (array("q") for _ in range(5))
        self.how, self.known = array("b"), array("b")

    def __len__(self) -> int:
        """Return the number of calls."""
        return len(self.kind)

    def _fill(self, operations: Sequence[OperationView], groups: GroupPool) -> None:
        if not operations:
            return
        records = [view.record for view in operations]
        self._fill_kinds(operations, records, Kinds(groups))
        self.sequence = array("q", [one.sequence for one in records])
        self.step = array("q", [one.step for one in records])
        entered = [one.entered_ns for one in records]
        ends = [(OPEN if one.completed_ns is None else one.completed_ns) for one in records]
        self.begun = array("q", [one.entered_ns if one.started_ns is None else one.started_ns for one in records])
        self.returned = array("q", [UNKNOWN if one.returned_ns is None else one.returned_ns for one in records])
        self.waited = array("q", [UNKNOWN if one.wait_entered_ns is None else one.wait_entered_ns for one in records])
        self.resumed = array(
            "q", [UNKNOWN if one.wait_returned_ns is None else one.wait_returned_ns for one in records]
        )
        self.ended = array("q", ends)
        self.splits = {place: one.splits for place, one in enumerate(records) if one.splits is not None}
        self.first_ns, self.last_entered_ns = min(entered), max(entered)
        newest = [
            entered_ns if ended_ns == OPEN else ended_ns for entered_ns, ended_ns in zip(entered, ends, strict=True)
        ]
        self.last_ns = max(newest)

    def _fill_kinds(self, operations: Sequence[OperationView], records: Sequence[Operation], kinds: Kinds) -> None:
        # Names are shared by calls, and comparing their addresses is much faster than comparing them.
        alike: dict[tuple[object, ...], SharedFields] = {}
        found: list[SharedFields] = []
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
            places = alike.get(key)
            if places is None:
                places = alike[key] = kinds.places_of(view)
            found.append(places)
        self.kind = array("i", [one.kind for one in found])
        self.channel = array("i", [one.channel for one in found])
        self.how = array("b", [one.how for one in found])
        self.known = array("b", [one.known for one in found])
        self.kinds, self.channels, self.groups = kinds.kinds, list(kinds.channels), kinds.groups

    def condense(self) -> None:
        """Forget what comparing ranks does not need: three columns, splits, steps, activities and unused groups."""
        self.drop("step", "returned", "resumed")
        self.known_groups, self.steps, self.activities = (), (), ()
        self.splits = {}

    def drop(self, *columns: str) -> None:
        """Empty some columns, which nobody may read any more."""
        for name in columns:
            column: array[int] = getattr(self, name)
            del column[:]

    def only(self, places: Iterable[int]) -> RankCalls:
        """Return a copy with some of the calls, in the given order."""
        places = array("i", places)
        found = copy.copy(self)
        for name in _COLUMNS:
            column: array[int] = getattr(self, name)
            setattr(found, name, array(column.typecode, map(column.__getitem__, places)))
        found.splits = {nth: self.splits[place] for nth, place in enumerate(places) if place in self.splits}
        return found

    def has_arrived(self, place: int) -> bool:
        """Return whether `begun` is when the rank arrived at a call, as other ranks notice it."""
        return bool(self.known[place] & ARRIVED)

    def is_timed(self, place: int) -> bool:
        """Return whether a call has ended, and its begin and end are known well enough for a duration."""
        return bool(self.known[place] & TIMED)

    def has_raised(self, place: int) -> bool:
        """Return whether a call has raised."""
        return self.how[place] in _RAISED

    def is_met(self, place: int) -> bool:
        """Return whether a call has ended, and by its end all that it waits for had arrived."""
        return self.ended[place] != OPEN and self.how[place] not in _UNMET

    def in_flight(self) -> Iterator[tuple[int, int]]:
        """Yield begin and end of the operations that have ended, where it is known when they were in flight."""
        are_operations = [kind.record_kind is RecordKind.OPERATION for kind in self.kinds]
        flags_of = [kind.flags for kind in self.kinds]
        columns = zip(self.kind, self.begun, self.ended, self.how, self.known, strict=True)
        for place, (kind, begun_ns, ended_ns, how, known) in enumerate(columns):
            if ended_ns == OPEN or how in _UNMET or not are_operations[kind]:
                continue
            flags, since_ns = flags_of[kind], begun_ns
            if flags & _ON_DEVICE:
                since_ns = begun_ns if known & STARTED else UNKNOWN
            elif flags & _END_UNSEEN and known & RETURNED:
                since_ns = self.waited[place]
            if since_ns != UNKNOWN:
                yield since_ns, ended_ns

    def hold(self, place: int) -> tuple[int, int] | None:
        """Return from when to when a call held its thread or device up; None if it did not, or if that is unknown."""
        ended_ns, kind = self.ended[place], self.kinds[self.kind[place]]
        if ended_ns == OPEN:
            return None
        if kind.flags & _ON_DEVICE:
            is_seen = self.how[place] in _EXACT and not kind.flags & _ASYNC and self.known[place] & STARTED
            return (self.begun[place], ended_ns) if is_seen else None
        waited_ns, resumed_ns = self.waited[place], self.resumed[place]
        if waited_ns != UNKNOWN:
            end_ns = ended_ns if resumed_ns == UNKNOWN else resumed_ns
            return (waited_ns, end_ns) if end_ns >= waited_ns else None
        # A synchronous collective is one wait from the call to the end.
        is_call = not self.known[place] & RETURNED and self.how[place] in _BLOCKING
        return (self.begun[place], ended_ns) if is_call else None

    def wait_ns(self, place: int) -> int:
        """Return how long a wait for a call lasted; `UNKNOWN` without one, or if that is not known."""
        # A wait that ended the operation is recorded as its end alone.
        until_ns = self.ended[place] if self.how[place] in _AWAITED else self.resumed[place]
        since_ns = self.waited[place]
        return max(until_ns - since_ns, 0) if UNKNOWN not in (since_ns, until_ns) else UNKNOWN

    def is_awaited_unseen(self, place: int) -> bool:
        """Return whether torch itself waits for a call where that is not seen, as DDP does in C++ after a backward."""
        kind = self.kinds[self.kind[place]]
        is_async = bool(kind.flags & _ASYNC) and kind.phase is not Phase.OUTSIDE_BACKWARD
        return is_async and bool(self.known[place] & RETURNED) and self.waited[place] == UNKNOWN

    def joins(self) -> list[int]:
        """Return when all gradients had been reduced, ascending: an optimizer takes its step then."""
        kind = ActivityKind.OPTIMIZER_STEP
        return sorted(one.entered_ns for one in self.activities if one.kind is kind)

    def by_channel(self) -> list[array[int]]:
        """Return for each channel the places of its calls, in the order in which they were entered."""
        found = [array("i") for _ in self.channels]
        append = [places.append for places in found]
        for place, channel in enumerate(self.channel):
            append[channel](place)
        return found


_COLUMNS: Final = (
    *("kind", "channel", "sequence", "step"),
    *("begun", "returned", "waited", "resumed", "ended", "how", "known"),
)


class CallTable:
    """The calls of all ranks.

    Attributes:
        ranks: By rank.
    """

    def __init__(self) -> None:
        """Begin without a rank."""
        self.ranks: dict[int, RankCalls] = {}
        self._groups = GroupPool()

    def columns_of(self, history: RankHistory) -> RankCalls:
        """Reduce a history to columns, without keeping them."""
        return RankCalls(history, self._groups)

    def keep(self, calls: RankCalls) -> None:
        """Keep what comparing ranks needs of a rank's calls, which are condensed."""
        calls.condense()
        self.ranks[calls.rank] = calls


def table_of(histories: Iterable[RankHistory]) -> CallTable:
    """Reduce the histories of all ranks to columns, one after the other."""
    table = CallTable()
    for history in histories:
        table.keep(table.columns_of(history))
    return table
