"""Judges ranks that wait for each other in a circle, and finds the rank at fault if the records show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from otel_torchdist.judge.verdict.judging.mismatched import judge_skipped_creation
from otel_torchdist.judge.verdict.roll_call import RollCall, Standing
from otel_torchdist.judge.verdict.verdict import Doubt, Link, Verdict, verdict_at
from otel_torchdist.judge.world.occupations import RemoteWait
from otel_torchdist.judge.world.threads import ThreadWait, WaitLink
from otel_torchdist.model.calls import Channel, OperationId, OperationView, Progress
from otel_torchdist.model.kinds import Phase, RecordKind
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import WorldSnapshot


class Hop(NamedTuple):
    """A step of the search, from the operation at which a rank is missing to an operation in which that rank waits.

    Attributes:
        roll: The operation at which the rank is missing.
        waits_in: The operation in which it waits.
        link: Whether that wait keeps the rank from entering the first operation.
        state: Whether its thread waits there, by records and stacks.
        remote: The remote procedure call in which the rank waits, if the called function is in the operation; else
            None.
    """

    roll: RollCall
    rank: int
    waits_in: OperationView
    link: WaitLink = WaitLink.OWN
    state: ThreadWait = ThreadWait.WAITS
    remote: RemoteWait | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        """The rank, and the rank it has called."""
        return (self.rank,) if self.remote is None or self.remote.rank is None else (self.rank, self.remote.rank)


def judge_circle(hops: Sequence[Hop]) -> Verdict:
    """Judge ranks that wait for each other. The verdict does not depend on where the search entered the circle.

    A rank without a confirmed wait may be busy in other code. If there is exactly one such rank, it is absent, unless
    it may wait for a lock, or its operation belongs to a backward pass, which waits for all operations it issues.

    Args:
        hops: Each rank waits in the operation at which the next rank is missing; the last waits for the first.
    """
    free = [hop for hop in hops if hop.state is not ThreadWait.WAITS]
    if len(free) == 1 and not _may_wait_unseen(free[0]):
        return verdict_at(VerdictKind.ABSENT, free[0].roll, (free[0].rank,))
    first = min((hop.roll for hop in hops), key=_age)
    circle = _links(hops)
    ranks = tuple(
        sorted({rank for hop in hops for rank in hop.ranks} | {rank for link in circle for rank in link.ranks})
    )
    if free:
        return verdict_at(VerdictKind.UNKNOWN, first, ranks, Doubt.CYCLE)
    if any(hop.link is WaitLink.UNKNOWN for hop in hops):
        return verdict_at(VerdictKind.UNKNOWN, first, ranks, Doubt.THREADS, circle=circle)
    circular = verdict_at(VerdictKind.CIRCULAR, first, ranks, circle=circle)
    if any(
        hop.remote is not None or hop.link is WaitLink.THROUGH or not hop.waits_in.record.is_blocking for hop in hops
    ):
        return circular
    return _skipped_creation(hops) or _unmatched(hops, ranks, circle) or circular


def _may_wait_unseen(hop: Hop) -> bool:
    return hop.state is ThreadWait.PERHAPS or hop.waits_in.record.phase is Phase.BACKWARD


def _age(roll: RollCall) -> tuple[int, object]:
    return roll.since_ns, roll.operation_id


def _skipped_creation(hops: Sequence[Hop]) -> Verdict | None:
    """Return the verdict on the creation of a group that some members skipped; None if there is none."""
    opposed = [
        (hop.roll, after.roll, hop.rank)
        for hop, after in _pairs(hops)
        if hop.roll.operation_id.channel.kind is RecordKind.RENDEZVOUS and hop.roll.waits.keys() & after.roll.members
    ]
    if not opposed:
        return None
    creation, elsewhere, rank = min(opposed, key=lambda pair: _age(pair[0]))
    return judge_skipped_creation(creation, elsewhere, rank)


def _unmatched(hops: Sequence[Hop], ranks: tuple[int, ...], circle: tuple[Link, ...]) -> Verdict | None:
    """Return the verdict on the oldest send or receive without a matching call on its peer.

    Its peer waits for the same rank in another operation: a collective, or a send or receive with another tag. A peer
    that waits for a third rank may still come. If all ranks of a circle send to or receive from the next rank, only
    their order is wrong. If two tags differ, the records do not show which tag is wrong.
    """
    channels = [hop.roll.operation_id.channel for hop in hops]
    directions = {(channel.source, channel.destination) for channel in channels}
    if len(hops) > 1 and len(directions) == 1 and channels[0].is_point_to_point:
        return verdict_at(VerdictKind.UNMATCHED, min((hop.roll for hop in hops), key=_age), ranks, circle=circle)
    if all(channel.is_point_to_point for channel in channels) and len(directions) > 1:
        return None
    opposed = [
        hop
        for hop, after in _pairs(hops)
        if hop.roll.operation_id.channel.is_point_to_point and hop.roll.waits.keys() & after.roll.members
    ]
    if not opposed:
        return None
    oldest = min(opposed, key=lambda hop: _age(hop.roll))
    return verdict_at(VerdictKind.UNMATCHED, oldest.roll, (oldest.rank,))


def _pairs(hops: Sequence[Hop]) -> list[tuple[Hop, Hop]]:
    """Return each hop with the next hop. The rank missing in the first hop waits in the second."""
    return list(zip(hops, [*hops[1:], hops[0]], strict=True))


def _links(hops: Sequence[Hop]) -> tuple[Link, ...]:
    """Return the links of the circle, starting with the lowest rank."""
    links = [_link(hop, after) for hop, after in _pairs(hops)]
    lowest = min(range(len(links)), key=lambda index: links[index].rank)
    return (*links[lowest:], *links[:lowest])


def _link(hop: Hop, after: Hop) -> Link:
    """Return the link of a hop, with other ranks that are missing and wait at the same operations."""
    inside = hop.waits_in
    missing = hop.roll.ranks(Standing.ABSENT)
    others = [rank for rank in after.roll.ranks(Standing.WAITING) if rank in missing] if hop.remote is None else []
    ranks = tuple(sorted({hop.rank, *others}))
    missing_there = after.rank if hop.remote is None else -1
    return Link(
        hop.rank, inside.operation_id, inside.name, inside.group, inside.label, hop.remote, ranks, missing_there,
        inside.call_site,
    )  # fmt: skip


# --- messages to another rank -----------------------------------------------------------------------------------------
# Sends and receives whose peer differs from the usual peer of their line.


def find_wrong_peer(
    world: WorldSnapshot, hops: Sequence[Hop], open_at: Mapping[OperationId, Mapping[int, OperationView]]
) -> tuple[OperationId, int] | None:
    """Return the operation that a rank owes its usual peer, and the rank, if it used a wrong peer instead.

    The rank's first message with the wrong peer comes from a line that always had another peer. That peer now waits.

    Args:
        world: The snapshot.
        hops: The circle.
        open_at: The open operations, by id and then by rank.
    """
    for hop in hops:
        channel, sequence = hop.roll.operation_id
        if not channel.is_point_to_point or sequence != 1:
            continue
        for rank, operation in hop.roll.waits.items():
            for usual_channel, progress in world.ranks[rank].progress.items():
                usual = OperationId(usual_channel, progress.entered + 1)
                is_owed = usual in open_at and rank not in open_at[usual]
                if is_owed and _has_same_direction(rank, channel, usual_channel) and _called(progress, operation):
                    return usual, rank
    return None


def _has_same_direction(rank: int, first: Channel, second: Channel) -> bool:
    """Return whether a rank sends in both channels, or receives in both, with different peers."""
    if first[:2] != second[:2] or not second.is_point_to_point:
        return False
    ends = ("source", "destination") if rank == first.source else ("destination", "source")
    own_ranks, peers = ({getattr(channel, end) for channel in (first, second)} for end in ends)
    return own_ranks == {rank} and len(peers) == 2


def _called(progress: Progress, operation: OperationView) -> bool:
    """Return whether an operation's line called this channel until now."""
    if not progress.aligned or operation.call_site is None:
        return False
    site = operation.call_site
    lines = {(arrival.frames[0].file, arrival.frames[0].line) for arrival in progress.recent if arrival.frames}
    return (site.file, site.line) in lines
