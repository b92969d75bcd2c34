"""Flows between ranks: from the call of the last to arrive at a meeting to the ends of those that waited for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from otel_torchdist.model.calls import Channel, GroupView
from otel_torchdist.model.operations import UNMET
from otel_torchdist.timeline.model import OPEN, Incident, RankTimeline

MAX_ALL: Final = 16
"""Members of a meeting up to which each has a flow; above, only the one that waited longest."""
_UNMET: Final = (0, *UNMET)
"""How calls end whose end shows no meeting, or that are open."""


@dataclass(slots=True)
class RankFlows:
    """Flows of one rank, by the place of its slice.

    Attributes:
        leaving: Ids of flows that begin where a slice begins.
        arriving: Ids of flows that end where a slice ends.
        incident: Ids of flows that begin at its incident.
    """

    leaving: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    arriving: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    incident: list[int] = field(default_factory=list[int])


class _Meeting:
    __slots__ = ("calls", "last")

    def __init__(self, last: tuple[int, int, int]) -> None:
        self.last = last
        self.calls = 0


def flows_of(ranks: Sequence[RankTimeline], incident: Incident | None = None) -> list[RankFlows]:
    """Return the flows between ranks, in the order of the ranks.

    Only meetings whose members are all drawn have flows: else the last of them may be another one.
    """
    flows = [RankFlows() for _ in ranks]
    ids = count(1)
    users: dict[Channel, list[int]] = {}
    for nth, rank in enumerate(ranks):
        for channel in rank.channels:
            users.setdefault(channel, []).append(nth)
    for channel, members in users.items():
        group = ranks[members[0]].channels[channel].group
        if _is_whole(channel, group, len(members)):
            _join(channel, members, ranks, flows, ids)
    if incident is not None:
        _mark(incident, ranks, flows, ids)
    return flows


def _is_whole(channel: Channel, group: GroupView | None, members: int) -> bool:
    if group is None or not group.name.aligned or members < 2:
        return False
    expected = len({channel.source, channel.destination}) if channel.is_point_to_point else len(group.members)
    return members == expected and not (group.is_inferred and not channel.is_point_to_point)


def _join(
    channel: Channel, members: list[int], ranks: Sequence[RankTimeline], flows: list[RankFlows], ids: count[int]
) -> None:
    meetings: dict[int, _Meeting] = {}
    for nth in members:
        slices = ranks[nth].slices
        for place in ranks[nth].channels[channel].places:
            arrival = (slices.begin[place], nth, place)
            meeting = meetings.setdefault(slices.sequence[place], _Meeting(arrival))
            meeting.calls += 1
            meeting.last = max(meeting.last, arrival)
    longest: dict[int, tuple[int, int, int]] = {}
    for nth in members:
        slices = ranks[nth].slices
        for place in ranks[nth].channels[channel].places:
            sequence = slices.sequence[place]
            meeting = meetings[sequence]
            begin_ns, last, last_place = meeting.last
            end_ns = slices.end[place]
            is_end = end_ns != OPEN and slices.how[place] not in _UNMET and end_ns > begin_ns
            if meeting.calls != len(members) or nth == last or not is_end:
                continue
            if len(members) <= MAX_ALL:
                _connect(flows, (last, last_place), (nth, place), next(ids))
            else:
                waiter = (slices.begin[place], nth, place)
                longest[sequence] = min(longest.get(sequence, waiter), waiter)
    for sequence, (_, nth, place) in longest.items():
        _, last, last_place = meetings[sequence].last
        _connect(flows, (last, last_place), (nth, place), next(ids))


def _connect(flows: list[RankFlows], start: tuple[int, int], end: tuple[int, int], flow: int) -> None:
    flows[start[0]].leaving.setdefault(start[1], []).append(flow)
    flows[end[0]].arriving.setdefault(end[1], []).append(flow)


def _mark(incident: Incident, ranks: Sequence[RankTimeline], flows: list[RankFlows], ids: count[int]) -> None:
    """Lead from the first rank that holds the job up to the calls of those that wait for it."""
    start = next((nth for nth, rank in enumerate(ranks) if rank.rank in incident.blamed), None)
    if start is None:
        return
    left = MAX_ALL
    for nth, rank in enumerate(ranks):
        place = _waiting_place(rank, incident) if nth != start and rank.rank in incident.waiting and left else None
        if place is not None:
            left -= 1
            flow = next(ids)
            flows[start].incident.append(flow)
            flows[nth].arriving.setdefault(place, []).append(flow)


def _waiting_place(rank: RankTimeline, incident: Incident) -> int | None:
    channel = rank.channels.get(incident.operation_id.channel)
    if channel is None:
        return None
    slices, sequence = rank.slices, incident.operation_id.sequence
    return next((one for one in channel.places if slices.sequence[one] == sequence and slices.end[one] == OPEN), None)
