"""Meetings of ranks: the calls of all members at one position of a channel, who came last, and who waited for whom."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from otel_torchdist.model.calls import ANY_RANK, Channel, GroupView, LastArrival, last_of
from otel_torchdist.model.collectives import RECV, Waiting, waiting_in
from otel_torchdist.sources.history.call_kinds import ARRIVED_ALONE, ENDED, CallKind
from otel_torchdist.sources.history.call_table import RankCalls


class Member:
    """A rank that takes part in a channel, with its calls there.

    Attributes:
        calls: All calls of the rank.
        places: Places of its calls in the channel, in the order in which they were entered; at least one.
        sequences: Their positions; a range if they are consecutive.
    """

    __slots__ = ("_by_sequence", "calls", "places", "sequences")

    def __init__(self, calls: RankCalls, places: array[int]) -> None:
        """Take the calls of a rank in one channel."""
        self.calls: Final = calls
        self.places: Final = places
        self._by_sequence: dict[int, int] | None = None
        sequences = array("q", map(calls.sequence.__getitem__, places))
        consecutive = range(sequences[0], sequences[0] + len(places))
        is_gapless = sequences[-1] == consecutive[-1] and array("q", consecutive) == sequences
        self.sequences: Final = consecutive if is_gapless else sequences

    def at(self, sequence: int) -> int | None:
        """Return the place of the call at a position; None if there is none."""
        if isinstance(self.sequences, range):
            return self.places[sequence - self.sequences.start] if sequence in self.sequences else None
        if self._by_sequence is None:
            self._by_sequence = dict(zip(self.sequences, self.places, strict=True))
        return self._by_sequence.get(sequence)

    @property
    def whole_from(self) -> int:
        """The position from which on no call is missing."""
        if isinstance(self.sequences, range):
            return self.sequences.start
        ascending = sorted(set(self.sequences))
        for nth in range(len(ascending) - 1, 0, -1):
            if ascending[nth] - ascending[nth - 1] > 1:
                return ascending[nth]
        return ascending[0]


class _LookedUp(NamedTuple):
    """The columns of all calls of a meeting.

    Attributes:
        known: Bits that are set for all of them.
        begun: When each has begun.
        operations: Their operations.
    """

    known: int
    begun: list[int]
    operations: set[str]


class Meeting:
    """The calls at one position of a channel.

    Attributes:
        shared: The channel.
        sequence: The position.
        members: The ranks that have called, ascending.
        places: The place of each one's call in its columns.
        missing: Ranks that have not called, among those whose calls are known.
    """

    def __init__(
        self,
        shared: SharedChannel,
        sequence: int,
        members: Sequence[Member],
        places: Sequence[int],
        missing: tuple[int, ...] = (),
    ) -> None:
        """Put the calls together."""
        self.shared: Final = shared
        self.sequence: Final = sequence
        self.members: Final = members
        self.places: Final = places
        self.missing: Final = missing

    @cached_property
    def kinds(self) -> list[CallKind]:
        """The kind of each call."""
        return [one.calls.kinds[one.calls.kind[place]] for one, place in zip(self.members, self.places, strict=True)]

    @property
    def operations(self) -> set[str]:
        """What members have called: one operation, unless they called different ones."""
        return self._looked_up.operations

    @cached_property
    def waiting(self) -> Waiting:
        """Who waits for whom; unknown if members called different operations."""
        found = [waiting_in(operation) for operation in self.operations]
        return found[0] if found and all(one is found[0] for one in found) else Waiting.UNKNOWN

    @property
    def arrived(self) -> list[int] | None:
        """When each member arrived; None unless all have come, by one clock, at times that are known well."""
        if self.missing or not self.shared.has_one_clock or not self._looked_up.known & ARRIVED_ALONE:
            return None
        return self._looked_up.begun

    @property
    def inside(self) -> tuple[int, ...]:
        """The ranks that have not left."""
        if self._looked_up.known & ENDED:
            return ()
        pairs = zip(self.members, self.places, strict=True)
        return tuple(one.calls.rank for one, place in pairs if not one.calls.known[place] & ENDED)

    @cached_property
    def _looked_up(self) -> _LookedUp:
        """Look at all members once: this takes most of the time of an analysis."""
        known, operations = -1, set[str]()
        begun: list[int] = []
        for member, place in zip(self.members, self.places, strict=True):
            calls = member.calls
            known &= calls.known[place]
            begun.append(calls.begun[place])
            operations.add(calls.kinds[calls.kind[place]].operation)
        return _LookedUp(known, begun, operations)

    def last(self) -> LastArrival | None:
        """Return who came last of all, if everyone waits for the last."""
        return last_of(self.arrived) if self.arrived is not None and self.waiting is Waiting.EVERYONE else None

    def awaited(self) -> Sequence[int | None]:
        """Return for each member when the rank arrived that it waits for; None if it waits for none, or if unknown."""
        arrived = self.arrived
        if arrived is None:
            return [None] * len(self.members)
        match self.waiting:
            case Waiting.EVERYONE:
                return [max(arrived)] * len(arrived)
            case Waiting.RECEIVER:
                last_ns = max(arrived)
                return [last_ns if kind.operation == RECV else None for kind in self.kinds]
            case Waiting.ROOT:
                last_ns = max(arrived)
                return [last_ns if is_root else None for is_root in self._are_root()]
            case Waiting.FOR_ROOT:
                are_root = self._are_root()
                root_ns = arrived[are_root.index(True)] if True in are_root else None
                return [None if is_root else root_ns for is_root in are_root]
            case Waiting.UNKNOWN:
                return [None] * len(arrived)

    def _are_root(self) -> list[bool]:
        return [member.calls.rank == kind.peer for member, kind in zip(self.members, self.kinds, strict=True)]


class SharedChannel:
    """A channel with the calls of all ranks that take part in it, as far as they are known.

    Attributes:
        channel: The channel.
        group: Its group.
        expected: Ranks that take part, ascending.
        members: Those that have called something in it, by ascending rank.
        absent: Ranks that have called nothing in it, although all of their calls are known.
        first: The position from which on the calls of all `members` are known.
        has_one_clock: Whether the times of all ranks that take part are known and can be compared.
    """

    def __init__(
        self,
        channel: Channel,
        group: GroupView,
        ranks: Mapping[int, RankCalls],
        places: Mapping[int, array[int]],
    ) -> None:
        """Put the calls of all ranks together.

        Args:
            channel: The channel.
            group: Its group.
            ranks: All ranks whose calls are known.
            places: By rank, where its calls in the channel are in its columns.
        """
        ends = (channel.source, channel.destination) if channel.is_point_to_point else group.members
        self.channel: Final = channel
        self.group: Final = group
        self.expected: Final = tuple(sorted(set(ends)))
        known = [ranks[rank] for rank in self.expected if rank in ranks]
        self.members: Final = {one.rank: Member(one, places[one.rank]) for one in known if one.rank in places}
        self.absent: Final = tuple(one.rank for one in known if one.rank not in places and not one.lost)
        self.first: Final = max((one.whole_from for one in self.members.values() if one.calls.lost), default=0)
        clocks = {one.clock for one in known}
        self.has_one_clock: Final = len(self.members) == len(self.expected) and len(clocks) == 1 and "" not in clocks

    def meetings(self, whole: bool = True) -> Iterator[Meeting]:
        """Yield all meetings, in order; unless `whole` is false, only those from `first` on."""
        least = self.first if whole else 0
        members = list(self.members.values())
        together = self._together(least)
        every = {
            sequence
            for member in members
            for sequence in member.sequences
            if sequence >= least and sequence not in together
        }
        ascending = sorted(every)
        yield from (self.meeting_at(sequence) for sequence in ascending if not together or sequence < together.start)
        if together:
            columns = [
                member.places[together.start - member.sequences[0] : together.stop - member.sequences[0]]
                for member in members
            ]
            for sequence, places in zip(together, zip(*columns, strict=True), strict=True):
                yield Meeting(self, sequence, members, places, self.absent)
            yield from (self.meeting_at(sequence) for sequence in ascending if sequence >= together.stop)

    def _together(self, least: int) -> range:
        """Return consecutive positions at which all members have called, and advance together through their places."""
        members = self.members.values()
        if not members or not all(isinstance(member.sequences, range) for member in members):
            return range(0)
        begin = max(least, *(member.sequences[0] for member in members))
        return range(begin, min(member.sequences[-1] for member in members) + 1)

    def meeting_at(self, sequence: int) -> Meeting:
        """Return the meeting at a position from `first` on."""
        members: list[Member] = []
        places: list[int] = []
        missing = [*self.absent]
        for rank, member in self.members.items():
            place = member.at(sequence)
            if place is None:
                missing.append(rank)
            else:
                members.append(member)
                places.append(place)
        return Meeting(self, sequence, members, places, tuple(sorted(missing)))


def shared_channels(ranks: Mapping[int, RankCalls]) -> Iterator[SharedChannel]:
    """Return the channels in which the positions of different ranks can be compared, in a fixed order.

    Left out are groups that were in use before their first recorded call, so that ranks count from different
    positions, groups that are not known, and what is sent to a rank that has accepted from any rank.

    Args:
        ranks: All ranks whose calls are known, ascending.
    """
    users: dict[Channel, dict[int, array[int]]] = {}
    unaligned: set[Channel] = set()
    for rank, calls in ranks.items():
        for (channel, is_aligned), places in zip(calls.channels, calls.by_channel(), strict=True):
            if not places:
                continue
            users.setdefault(channel, {})[rank] = places
            if not is_aligned:
                unaligned.add(channel)
    accepting = accepting_inboxes(users)
    for channel in sorted(users):
        places = users[channel]
        group = next(iter(ranks[rank] for rank in places)).groups.get(channel.group)
        if group is None or (channel.is_point_to_point and group.name.world):
            continue  # the ends of a message in a world made by hand are no ranks of this run
        if channel not in unaligned and inbox_of(channel) not in accepting:
            yield SharedChannel(channel, group, ranks, places)


def accepting_inboxes(channels: Iterable[Channel]) -> set[tuple[str, int]]:
    """Return where messages arrive that cannot be matched: the receiver has accepted from any rank."""
    return {inbox_of(one) for one in channels if one.is_point_to_point and one.source == ANY_RANK}


def inbox_of(channel: Channel) -> tuple[str, int]:
    """Return the group and the receiving rank of a channel; the rank is -1 for collectives."""
    return channel.group, channel.destination
