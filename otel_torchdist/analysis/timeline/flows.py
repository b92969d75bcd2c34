"""Flow arrows between ranks: from the last arrival at an operation to the ends of the calls that waited for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from otel_torchdist.analysis.timeline.rank_timeline import DrawnStall, RankTimeline
from otel_torchdist.sources.history.call_table import OPEN
from otel_torchdist.sources.history.meetings import Meeting, SharedChannel, shared_channels

MAX_FLOWS: Final = 16
"""Upper bound on flows to waiting ranks. In an operation with more members, only the first to arrive gets a flow."""


@dataclass(slots=True)
class RankFlows:
    """Flows of one rank, by the index of the slice.

    Attributes:
        leaving: Ids of flows that leave from the start of a slice.
        arriving: Ids of flows that arrive at the end of a slice.
        incident: Ids of flows that leave from the rank's stall marker.
    """

    leaving: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    arriving: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    incident: list[int] = field(default_factory=list[int])


def flows_of(ranks: Sequence[RankTimeline], stall: DrawnStall | None = None) -> list[RankFlows]:
    """Return the flows between ranks, in the order of the ranks.

    Only operations whose members are all drawn have flows: else a rank that is not drawn may have arrived last.
    """
    flows = [RankFlows() for _ in ranks]
    ids = count(1)
    nth_of = {rank.rank: nth for nth, rank in enumerate(ranks)}
    for shared in shared_channels({rank.rank: rank.calls for rank in ranks}):
        if not _is_whole(shared):
            continue
        for meeting in shared.meetings(whole=False):
            if len(meeting.members) == len(shared.expected):
                _join(meeting, nth_of, flows, ids)
    if stall is not None:
        _mark(stall, ranks, flows, ids)
    return flows


def _is_whole(shared: SharedChannel) -> bool:
    is_inferred = shared.group.is_inferred and not shared.channel.is_point_to_point
    return len(shared.members) == len(shared.expected) > 1 and not is_inferred


def _join(meeting: Meeting, nth_of: dict[int, int], flows: list[RankFlows], ids: count[int]) -> None:
    """Connect the last arrival to the calls that waited; if there are many members, only to the first of them."""
    arrivals = [
        (member.calls.started[index], nth_of[member.calls.rank], index)
        for member, index in zip(meeting.members, meeting.indices, strict=True)
    ]
    last = max(arrivals)
    waiters = list(_waiters(meeting, arrivals, last))
    if len(arrivals) > MAX_FLOWS and waiters:
        waiters = [min(waiters)]
    for _, nth, index in waiters:
        _connect(flows, last[1:], (nth, index), next(ids))


def _waiters(
    meeting: Meeting, arrivals: Sequence[tuple[int, int, int]], last: tuple[int, int, int]
) -> Iterator[tuple[int, int, int]]:
    for member, arrival in zip(meeting.members, arrivals, strict=True):
        _, nth, index = arrival
        if nth != last[1] and member.calls.is_met(index) and member.calls.ended[index] > last[0]:
            yield arrival


def _connect(flows: list[RankFlows], start: tuple[int, int], end: tuple[int, int], flow: int) -> None:
    flows[start[0]].leaving.setdefault(start[1], []).append(flow)
    flows[end[0]].arriving.setdefault(end[1], []).append(flow)


def _mark(stall: DrawnStall, ranks: Sequence[RankTimeline], flows: list[RankFlows], ids: count[int]) -> None:
    """Connect the first blamed rank to the calls that wait for it."""
    start = next((nth for nth, rank in enumerate(ranks) if rank.rank in stall.blamed), None)
    if start is None:
        return
    remaining = MAX_FLOWS
    for nth, rank in enumerate(ranks):
        index = _waiting_index(rank, stall) if nth != start and rank.rank in stall.waiting and remaining else None
        if index is not None:
            remaining -= 1
            flow = next(ids)
            flows[start].incident.append(flow)
            flows[nth].arriving.setdefault(index, []).append(flow)


def _waiting_index(rank: RankTimeline, stall: DrawnStall) -> int | None:
    """Return the index of the open call in which a rank waits for the stalled operation, or None."""
    channel, sequence = stall.operation_id
    calls = rank.calls
    for index, ended_ns in enumerate(calls.ended):
        is_open_there = ended_ns == OPEN and calls.sequence[index] == sequence
        if is_open_there and calls.channels[calls.channel[index]].channel == channel:
            return index
    return None
