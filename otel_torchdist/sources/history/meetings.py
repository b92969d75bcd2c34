"""Meetings of ranks: all calls at one position of a channel, the last rank to arrive, and the ranks that wait."""

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
    """A rank with its calls in one channel.

    Attributes:
        calls: All calls of the rank.
        indices: Indices of its calls in the channel, in order of entry; at least one.
        sequences: Positions of these calls; a range if they are consecutive.
    """

    __slots__ = ("_by_sequence", "calls", "indices", "sequences")

    def __init__(self, calls: RankCalls, indices: array[int]) -> None:
        """Look up the positions of a rank's calls in one channel."""
        self.calls: Final = calls
        self.indices: Final = indices
        self._by_sequence: dict[int, int] | None = None
        sequences = array("q", map(calls.sequence.__getitem__, indices))
        consecutive = range(sequences[0], sequences[0] + len(indices))
        is_gapless = sequences[-1] == consecutive[-1] and array("q", consecutive) == sequences
        self.sequences: Final = consecutive if is_gapless else sequences

    def index_at(self, sequence: int) -> int | None:
        """Return the index of the call at a position; None without a call."""
        if isinstance(self.sequences, range):
            return self.indices[sequence - self.sequences.start] if sequence in self.sequences else None
        if self._by_sequence is None:
            self._by_sequence = dict(zip(self.sequences, self.indices, strict=True))
        return self._by_sequence.get(sequence)

    @property
    def complete_from(self) -> int:
        """First position after the last gap: no later call is missing."""
        if isinstance(self.sequences, range):
            return self.sequences.start
        ascending = sorted(set(self.sequences))
        for nth in range(len(ascending) - 1, 0, -1):
            if ascending[nth] - ascending[nth - 1] > 1:
                return ascending[nth]
        return ascending[0]


class _MeetingColumns(NamedTuple):
    """The columns of a meeting's calls.

    Attributes:
        known_times: Bits of `RankCalls.known_times` that are set for all calls.
        started: `RankCalls.started` of each call.
        operations: Names of the operations that were called.
    """

    known_times: int
    started: list[int]
    operations: set[str]


class Meeting:
    """The calls at one position of a channel.

    Attributes:
        shared: The channel.
        sequence: The position.
        members: The ranks that have called, ascending.
        indices: The index of each member's call in its columns.
        missing: Ranks that have not made the call, as their complete records show.
    """

    def __init__(
        self,
        shared: SharedChannel,
        sequence: int,
        members: Sequence[Member],
        indices: Sequence[int],
        missing: tuple[int, ...] = (),
    ) -> None:
        """Combine the calls of all members."""
        self.shared: Final = shared
        self.sequence: Final = sequence
        self.members: Final = members
        self.indices: Final = indices
        self.missing: Final = missing

    @cached_property
    def kinds(self) -> list[CallKind]:
        """The kind of each member's call."""
        return [
            member.calls.kinds[member.calls.kind[index]]
            for member, index in zip(self.members, self.indices, strict=True)
        ]

    @property
    def operations(self) -> set[str]:
        """Names of the operations that members called; more than one for a mismatch."""
        return self._columns.operations

    @cached_property
    def waiting(self) -> Waiting:
        """Rule by which members wait for each other; `UNKNOWN` if they called different operations."""
        rules = {waiting_in(operation) for operation in self.operations}
        return rules.pop() if len(rules) == 1 else Waiting.UNKNOWN

    @property
    def arrived(self) -> list[int] | None:
        """Arrival time of each member; None if a member has not arrived, or if the times are not comparable."""
        if self.missing or not self.shared.has_one_clock or not self._columns.known_times & ARRIVED_ALONE:
            return None
        return self._columns.started

    @property
    def inside(self) -> tuple[int, ...]:
        """The ranks that are still in the operation."""
        if self._columns.known_times & ENDED:
            return ()
        pairs = zip(self.members, self.indices, strict=True)
        return tuple(member.calls.rank for member, index in pairs if not member.calls.known_times[index] & ENDED)

    @cached_property
    def _columns(self) -> _MeetingColumns:
        """The columns, read only once: reading them takes most of the time of an analysis."""
        known_times, operations = -1, set[str]()
        started: list[int] = []
        for member, index in zip(self.members, self.indices, strict=True):
            calls = member.calls
            known_times &= calls.known_times[index]
            started.append(calls.started[index])
            operations.add(calls.kinds[calls.kind[index]].operation)
        return _MeetingColumns(known_times, started, operations)

    def last(self) -> LastArrival | None:
        """Return the last arrival if all members wait for it; None otherwise, or if unknown."""
        return last_of(self.arrived) if self.arrived is not None and self.waiting is Waiting.EVERYONE else None

    def awaited(self) -> Sequence[int | None]:
        """Return for each member when the rank it waits for arrived; None if it waits for no rank, or if unknown."""
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
    """A channel with the known calls of its ranks.

    Attributes:
        expected: Ranks of the channel, ascending.
        members: The ranks with a call in the channel, ascending.
        absent: Ranks whose complete records contain no call in the channel, ascending.
        first: First position from which all calls of `members` are known.
        has_one_clock: Whether all expected ranks have called, by one known clock.
    """

    def __init__(
        self,
        channel: Channel,
        group: GroupView,
        ranks: Mapping[int, RankCalls],
        indices: Mapping[int, array[int]],
    ) -> None:
        """Match the calls of all ranks.

        Args:
            channel: The channel.
            group: Its group.
            ranks: All ranks whose calls are known.
            indices: Indices of the calls in the channel, by rank.
        """
        ranks_of_channel = (channel.source, channel.destination) if channel.is_point_to_point else group.members
        self.channel: Final = channel
        self.group: Final = group
        self.expected: Final = tuple(sorted(set(ranks_of_channel)))
        recorded = [ranks[rank] for rank in self.expected if rank in ranks]
        self.members: Final = {
            calls.rank: Member(calls, indices[calls.rank]) for calls in recorded if calls.rank in indices
        }
        self.absent: Final = tuple(calls.rank for calls in recorded if calls.rank not in indices and not calls.lost)
        incomplete = (member for member in self.members.values() if member.calls.lost)
        self.first: Final = max((member.complete_from for member in incomplete), default=0)
        clocks = {calls.clock for calls in recorded}
        self.has_one_clock: Final = len(self.members) == len(self.expected) and len(clocks) == 1 and "" not in clocks

    def meetings(self, whole: bool = True) -> Iterator[Meeting]:
        """Yield the meetings by ascending position: from `first` on, or from the first call on if `whole` is false."""
        start = self.first if whole else 0
        members = list(self.members.values())
        common = self._common_range(start)
        remaining = {
            sequence
            for member in members
            for sequence in member.sequences
            if sequence >= start and sequence not in common
        }
        ascending = sorted(remaining)
        yield from (self.meeting_at(sequence) for sequence in ascending if not common or sequence < common.start)
        if common:
            columns = [
                member.indices[common.start - member.sequences[0] : common.stop - member.sequences[0]]
                for member in members
            ]
            for sequence, indices in zip(common, zip(*columns, strict=True), strict=True):
                yield Meeting(self, sequence, members, indices, self.absent)
            yield from (self.meeting_at(sequence) for sequence in ascending if sequence >= common.stop)

    def _common_range(self, start: int) -> range:
        """Return the positions, from `start` on, at which every member has a call; empty if a member has a gap."""
        members = self.members.values()
        if not members or not all(isinstance(member.sequences, range) for member in members):
            return range(0)
        begin = max(start, *(member.sequences[0] for member in members))
        return range(begin, min(member.sequences[-1] for member in members) + 1)

    def meeting_at(self, sequence: int) -> Meeting:
        """Return the meeting at a position from `first` on."""
        members: list[Member] = []
        indices: list[int] = []
        missing = [*self.absent]
        for rank, member in self.members.items():
            index = member.index_at(sequence)
            if index is None:
                missing.append(rank)
            else:
                members.append(member)
                indices.append(index)
        return Meeting(self, sequence, members, indices, tuple(sorted(missing)))


def shared_channels(ranks: Mapping[int, RankCalls]) -> Iterator[SharedChannel]:
    """Yield the channels whose positions are comparable between ranks, ascending.

    Three kinds of channels are left out: unknown groups, messages to a rank that receives from any rank, and groups
    that were in use before the recording began: their ranks count from different positions.

    Args:
        ranks: All ranks whose calls are known, ascending.
    """
    users: dict[Channel, dict[int, array[int]]] = {}
    unaligned: set[Channel] = set()
    for rank, calls in ranks.items():
        for (channel, is_aligned), indices in zip(calls.channels, calls.by_channel(), strict=True):
            if not indices:
                continue
            users.setdefault(channel, {})[rank] = indices
            if not is_aligned:
                unaligned.add(channel)
    accepting = accepting_inboxes(users)
    for channel in sorted(users):
        indices = users[channel]
        group = next(iter(ranks[rank] for rank in indices)).groups.get(channel.group)
        if group is None or (channel.is_point_to_point and group.name.world):
            continue  # in a standalone process group, source and destination are not ranks of this run
        if channel not in unaligned and inbox_of(channel) not in accepting:
            yield SharedChannel(channel, group, ranks, indices)


def accepting_inboxes(channels: Iterable[Channel]) -> set[tuple[str, int]]:
    """Return the inboxes whose messages cannot be matched, because the receiver accepts from any rank."""
    return {inbox_of(channel) for channel in channels if channel.is_point_to_point and channel.source == ANY_RANK}


def inbox_of(channel: Channel) -> tuple[str, int]:
    """Return the group and the receiving rank of a channel; the rank is -1 for collectives."""
    return channel.group, channel.destination
