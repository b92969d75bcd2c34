"""The calls of one rank in columns of numbers: a job's millions of calls do not fit in memory as objects."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

from otel_torchdist.model.calls import Channel, GroupView, OperationView
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import Flag, RecordKind
from otel_torchdist.model.operations import EXACT, RAISED, UNMET, Operation
from otel_torchdist.statistics.grouping import CallKind
from otel_torchdist.statistics.intervals import union_ns
from otel_torchdist.statistics.tally import KindTally
from otel_torchdist.statistics.traffic import size_of

UNKNOWN: Final = -1
OPEN: Final = -2
_COALESCED: Final = int(Flag.COALESCED)
_SUBMITTED_LATER: Final = int(Flag.ON_DEVICE | Flag.COALESCED)
"""Their call only enqueues, and what is coalesced is not even enqueued before the others are there."""


class ChannelCalls:
    """The calls of one rank in one channel, in the order in which they were entered.

    Attributes:
        sequences: Their positions in the channel.
        kinds: Index of the kind of each, in `RankCalls.kinds`.
        arrived: When the rank arrived at each; `UNKNOWN` if that is not known well.
        watched: Since when its end could be seen: since it was entered, or since a thread waits for it.
        ended: When each ended; `UNKNOWN` if that is not known well, `OPEN` if it has not.
        is_aligned: Whether the positions can be compared with those of other ranks.
    """

    __slots__ = ("_by_sequence", "arrived", "ended", "is_aligned", "kinds", "sequences", "watched")

    def __init__(self) -> None:
        self.sequences = array("q")
        self.kinds = array("i")
        self.arrived = array("q")
        self.watched = array("q")
        self.ended = array("q")
        self.is_aligned = True
        self._by_sequence: dict[int, int] | None = None

    def add(self, sequence: int, kind: int, arrived_ns: int, wait_entered_ns: int | None, ended_ns: int) -> None:
        """Add a call."""
        self.sequences.append(sequence)
        self.kinds.append(kind)
        self.arrived.append(arrived_ns)
        self.watched.append(arrived_ns if wait_entered_ns is None else wait_entered_ns)
        self.ended.append(ended_ns)

    def index(self) -> None:
        """Make `at` work, once all calls are here."""
        first, last = self.sequences[0], self.sequences[-1]
        if last - first + 1 != len(self.sequences) or any(
            after - before != 1 for before, after in zip(self.sequences, self.sequences[1:], strict=False)
        ):
            self._by_sequence = dict(zip(self.sequences, range(len(self.sequences)), strict=True))

    def at(self, sequence: int) -> int | None:
        """Return the place of a sequence in the columns; None if it is not there."""
        if self._by_sequence is not None:
            return self._by_sequence.get(sequence)
        place = sequence - self.sequences[0]
        return place if 0 <= place < len(self.sequences) else None

    @property
    def whole_from(self) -> int:
        """The sequence from which on no call is missing."""
        ascending = sorted(set(self.sequences))
        for place in range(len(ascending) - 1, 0, -1):
            if ascending[place] - ascending[place - 1] > 1:
                return ascending[place]
        return ascending[0]


class RankCalls:
    """What is kept of one rank's history.

    Attributes:
        rank: Global rank.
        host: Host name, or ''.
        clock: Names the clock of all its times; '' if that is not known.
        wall_offset_ns: Add it to a time for nanoseconds since the epoch.
        lost: How many calls are known to be missing.
        kinds: The kinds of its calls.
        tallies: Counts for each kind.
        channels: Its calls, by channel.
        groups: Its groups, by their key.
        first_ns: When its first call was entered; None if there is none.
        last_ns: When the last of its calls was entered or ended.
        communicating_ns: Time in which at least one of its calls was in flight; open ones do not count. None if it is
            not known of any call when it was in flight.
    """

    def __init__(self, history: RankHistory) -> None:
        """Take what is needed from a history."""
        self.rank = history.rank
        self.host = history.host
        self.clock = history.clock
        self.wall_offset_ns = history.wall_offset_ns
        self.lost = history.lost
        self.kinds: list[CallKind] = []
        self.tallies: list[KindTally] = []
        self.channels: dict[Channel, ChannelCalls] = {}
        self.groups: dict[str, GroupView] = {}
        self._places: dict[CallKind, int] = {}
        self.first_ns: int | None = None
        self.last_ns = 0
        in_flight = self._take(history.operations)
        self.communicating_ns = union_ns(in_flight) if in_flight else None
        for channel in self.channels.values():
            channel.index()

    def _take(self, operations: Iterable[OperationView]) -> list[tuple[int, int]]:
        """Fill the columns; returns begin and end of what was in flight."""
        in_flight: list[tuple[int, int]] = []
        # Names are shared by calls, and comparing their addresses is much faster than comparing them.
        known: dict[tuple[object, ...], tuple[int, KindTally, ChannelCalls]] = {}
        first_ns = last_ns = None
        for view in operations:
            record = view.record
            key = (
                *(id(view.signature), id(view.group), id(view.call_site), view.name),
                *(record.message_bytes, record.peer, record.tag, int(record.flags), record.phase),
            )
            found = known.get(key)
            if found is None:
                found = known[key] = self._make(view)
            place, tally, calls = found
            entered_ns, completed_ns = record.entered_ns, record.completed_ns
            if first_ns is None or entered_ns < first_ns:
                first_ns = entered_ns
            newest_ns = entered_ns if completed_ns is None else completed_ns
            if last_ns is None or newest_ns > last_ns:
                last_ns = newest_ns
            tally.calls += 1
            ended_ns = UNKNOWN
            if completed_ns is None:
                tally.open += 1
                ended_ns = OPEN
            elif record.is_timed:
                tally.durations.append(completed_ns - record.arrived_ns)
                ended_ns = completed_ns
            elif record.how in RAISED:
                tally.failed += 1
            if completed_ns is not None and record.how not in UNMET and record.kind is RecordKind.OPERATION:
                begun_ns = record.in_flight_since_ns
                if begun_ns is not None:
                    in_flight.append((begun_ns, completed_ns))
            calls.add(record.sequence, place, _arrived_ns(record), record.wait_entered_ns, ended_ns)
        self.first_ns, self.last_ns = first_ns, last_ns or 0
        return in_flight

    def _make(self, view: OperationView) -> tuple[int, KindTally, ChannelCalls]:
        record, group = view.record, view.group
        channel = view.operation_id.channel
        kind = CallKind(
            operation=view.name,
            group=group.key if group is not None else "",
            members=len(group.members) if group is not None else 0,
            size=size_of(view),
            message_bytes=record.message_bytes,
            site=view.call_site,
            root=-1 if channel.is_point_to_point else record.peer,
            phase=record.phase,
        )
        if group is not None:
            self.groups.setdefault(group.key, group)
        place = self._places.setdefault(kind, len(self.kinds))
        if place == len(self.kinds):
            self.kinds.append(kind)
            self.tallies.append(KindTally())
        calls = self.channels.setdefault(channel, ChannelCalls())
        calls.is_aligned &= group is not None and group.name.aligned
        return place, self.tallies[place], calls


def _arrived_ns(record: Operation) -> int:
    """When the rank arrived at a call, as other ranks notice it; `UNKNOWN` if that is not known well."""
    flags = int(record.flags)
    if not flags & _SUBMITTED_LATER:
        return record.entered_ns
    if flags & _COALESCED or record.started_ns is None or record.started_how not in EXACT:
        return UNKNOWN
    return record.started_ns
