"""What belongs together across ranks: the calls of all members at one position of a channel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from otel_torchdist.model.calls import ANY_RANK, Channel, GroupView
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.statistics.calls import ChannelCalls, RankCalls
from otel_torchdist.statistics.grouping import CallKind


@dataclass(frozen=True, slots=True)
class Member:
    """A rank that takes part in a channel, with its calls there.

    Attributes:
        rank: The rank.
        calls: Its calls in the channel.
    """

    rank: RankCalls
    calls: ChannelCalls

    def kind(self, place: int) -> CallKind:
        """The kind of the call at a place of the columns."""
        return self.rank.kinds[self.calls.kinds[place]]


@dataclass(frozen=True, slots=True)
class Meeting:
    """One position of a channel.

    Attributes:
        sequence: The position.
        calls: The ranks that have been there, ascending, each with the place of its call in its columns.
        missing: Ranks that have not, among those whose calls are known.
    """

    sequence: int
    calls: tuple[tuple[Member, int], ...]
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SharedChannel:
    """A channel with the calls of all ranks that take part in it, as far as they are known.

    Attributes:
        channel: The channel.
        group: Its group.
        expected: Ranks that take part, ascending.
        members: Those that have called something in it, by ascending rank.
        absent: Ranks that have called nothing in it, although all of their calls are known.
        first: The sequence from which on the calls of all `members` are known.
        has_one_clock: Whether the times of all ranks that take part are known and can be compared.
    """

    channel: Channel
    group: GroupView
    expected: tuple[int, ...]
    members: Mapping[int, Member]
    absent: tuple[int, ...]
    first: int
    has_one_clock: bool

    def meetings(self) -> Iterator[Meeting]:
        """All positions from `first` on, in order."""
        members = self.members.values()
        every = {sequence for member in members for sequence in member.calls.sequences if sequence >= self.first}
        yield from map(self.meeting_at, sorted(every))

    def meeting_at(self, sequence: int) -> Meeting:
        """The meeting at a position from `first` on."""
        places = [(member, member.calls.at(sequence)) for member in self.members.values()]
        missing = [member.rank.rank for member, place in places if place is None]
        calls = tuple((member, place) for member, place in places if place is not None)
        return Meeting(sequence, calls, tuple(sorted([*missing, *self.absent])))


def shared_channels(ranks: Mapping[int, RankCalls]) -> Iterator[SharedChannel]:
    """The channels in which the positions of different ranks can be compared, in a fixed order.

    Left out are groups that were in use before their first recorded call, so that ranks count from different
    positions, groups that are not known, and what is sent to a rank that has accepted from any rank.

    Args:
        ranks: All ranks whose calls are known, ascending.
    """
    users: dict[Channel, list[RankCalls]] = {}
    for rank in ranks.values():
        for channel in rank.channels:
            users.setdefault(channel, []).append(rank)
    accepting = {(one.group, one.destination) for one in users if one.is_point_to_point and one.source == ANY_RANK}
    for channel in sorted(users):
        view = users[channel][0].groups.get(channel.group)
        is_aligned = all(rank.channels[channel].is_aligned for rank in users[channel])
        if view is None or (channel.is_point_to_point and view.name.world):
            continue  # the ends of a message in a world made by hand are no ranks of this run
        if is_aligned and (channel.group, channel.destination) not in accepting:
            yield _shared(channel, view, ranks)


def _shared(channel: Channel, group: GroupView, ranks: Mapping[int, RankCalls]) -> SharedChannel:
    ends = (channel.source, channel.destination) if channel.is_point_to_point else group.members
    expected = tuple(sorted(set(ends)))
    known = [ranks[rank] for rank in expected if rank in ranks]
    members = {rank.rank: Member(rank, rank.channels[channel]) for rank in known if channel in rank.channels}
    lossy = [member.calls.whole_from for member in members.values() if member.rank.lost]
    clocks = {rank.clock for rank in known}
    return SharedChannel(
        channel=channel,
        group=group,
        expected=expected,
        members=members,
        absent=tuple(rank.rank for rank in known if channel not in rank.channels and not rank.lost),
        first=max(lossy, default=0),
        has_one_clock=len(members) == len(expected) and len(clocks) == 1 and "" not in clocks,
    )


def is_operation(channel: Channel) -> bool:
    """Whether a channel is of communication, not of the creation of groups."""
    return channel.kind is RecordKind.OPERATION
