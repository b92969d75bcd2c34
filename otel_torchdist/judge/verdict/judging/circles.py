"""Ranks that wait for each other in a circle: which of them is at fault, if the records show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from otel_torchdist.judge.verdict.judging.mismatched import other_call
from otel_torchdist.judge.verdict.roll_call import RollCall, Standing
from otel_torchdist.judge.verdict.verdict import Doubt, Link, Verdict, verdict_at
from otel_torchdist.judge.world.occupations import RemoteWait
from otel_torchdist.judge.world.threads import ThreadStand, Tie
from otel_torchdist.model.calls import Channel, OperationId, OperationView, Progress
from otel_torchdist.model.kinds import Phase, RecordKind
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.model.verdict_kinds import VerdictKind


class Hop(NamedTuple):
    """A step of the search: from an operation at which a rank is missing to one in which that rank waits.

    Attributes:
        roll: The operation at which the rank is missing.
        rank: The rank.
        waits_in: The operation in which it waits.
        tie: Whether that wait keeps the rank from the first operation.
        stand: Whether it is seen to wait there.
        remote: The remote procedure call in which it waits, if that is how it does: the function is in the operation.
    """

    roll: RollCall
    rank: int
    waits_in: OperationView
    tie: Tie = Tie.OWN
    stand: ThreadStand = ThreadStand.WAITS
    remote: RemoteWait | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        """The rank, and the one that it has called."""
        return (self.rank,) if self.remote is None or self.remote.rank is None else (self.rank, self.remote.rank)


def judge_circle(hops: Sequence[Hop]) -> Verdict:
    """Judge ranks that wait for each other; the verdict does not depend on where the circle was entered.

    A rank that is not seen to wait may be busy with something else. If it is the only one, it is absent, unless it
    waits for some lock, or its operation is of a backward pass: that waits for all that it issues.

    Args:
        hops: Each waits where the next one is missing, the last where the first is missing.
    """
    free = [hop for hop in hops if hop.stand is not ThreadStand.WAITS]
    if len(free) == 1 and not _may_wait(free[0]):
        return verdict_at(VerdictKind.ABSENT, free[0].roll, (free[0].rank,))
    first = min((hop.roll for hop in hops), key=_age)
    circle = _links(hops)
    ranks = tuple(
        sorted({rank for hop in hops for rank in hop.ranks} | {rank for link in circle for rank in link.ranks})
    )
    if free:
        return verdict_at(VerdictKind.UNKNOWN, first, ranks, Doubt.CYCLE)
    if any(hop.tie is Tie.UNKNOWN for hop in hops):
        return verdict_at(VerdictKind.UNKNOWN, first, ranks, Doubt.THREADS, circle=circle)
    circular = verdict_at(VerdictKind.CIRCULAR, first, ranks, circle=circle)
    if any(hop.remote is not None or hop.tie is Tie.THROUGH or not hop.waits_in.record.is_blocking for hop in hops):
        return circular
    return _left_out(hops) or _unmatched(hops, ranks, circle) or circular


def _may_wait(hop: Hop) -> bool:
    return hop.stand is ThreadStand.PERHAPS or hop.waits_in.record.phase is Phase.BACKWARD


def _age(roll: RollCall) -> tuple[int, object]:
    return roll.since_ns, roll.operation_id


def _left_out(hops: Sequence[Hop]) -> Verdict | None:
    """A rank that has skipped the creation of a group, or creates one by itself, and waits for ranks that differ."""
    opposed = [
        (hop.roll, after.roll, hop.rank)
        for hop, after in _pairs(hops)
        if hop.roll.operation_id.channel.kind is RecordKind.RENDEZVOUS and hop.roll.waits.keys() & after.roll.members
    ]
    if not opposed:
        return None
    creation, elsewhere, rank = min(opposed, key=lambda found: _age(found[0]))
    return other_call(creation, elsewhere, rank)


def _unmatched(hops: Sequence[Hop], ranks: tuple[int, ...], circle: tuple[Link, ...]) -> Verdict | None:
    """The oldest send or receive whose other side does not seem to exist.

    Its peer waits for that very rank in something else: in a collective, or in a send or receive with another tag. A
    peer that waits for a third rank may still come. Where all ranks of a circle send to or receive from the next one,
    they have only chosen the wrong order. Of two tags that differ, nothing shows which is the wrong one.
    """
    channels = [hop.roll.operation_id.channel for hop in hops]
    ends = {(channel.source, channel.destination) for channel in channels}
    if len(hops) > 1 and len(ends) == 1 and channels[0].is_point_to_point:
        return verdict_at(VerdictKind.UNMATCHED, min((hop.roll for hop in hops), key=_age), ranks, circle=circle)
    if all(channel.is_point_to_point for channel in channels) and len(ends) > 1:
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
    """Each hop with the one after it: the rank that is missing at the first waits at the second."""
    return list(zip(hops, [*hops[1:], hops[0]], strict=True))


def _links(hops: Sequence[Hop]) -> tuple[Link, ...]:
    """Which ranks wait where and for which one, starting with the lowest rank."""
    links = [_link(hop, after) for hop, after in _pairs(hops)]
    lowest = min(range(len(links)), key=lambda place: links[place].rank)
    return (*links[lowest:], *links[:lowest])


def _link(hop: Hop, after: Hop) -> Link:
    """Where a rank waits, with the others that are missing with it and wait there with it."""
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
# Sends and receives that have gone to another rank than those of the same line before them.


def strayed(
    world: WorldSnapshot, hops: Sequence[Hop], open_at: Mapping[OperationId, Mapping[int, OperationView]]
) -> tuple[OperationId, int] | None:
    """The operation that a rank of a circle should be in, and that rank, if it has turned to another peer; else None.

    Its first message to or from that peer is from a line that has always served another one, which now waits for it.

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
            for usual, inside in open_at.items():
                is_owed = rank not in inside and _is_on_the_same_end(rank, channel, usual.channel)
                if is_owed and _was_next(world.ranks[rank].progress.get(usual.channel), usual.sequence, operation):
                    return usual, rank
    return None


def _is_on_the_same_end(rank: int, one: Channel, other: Channel) -> bool:
    """Whether a rank sends in both channels, or receives in both, with different ranks."""
    if one[:2] != other[:2] or not other.is_point_to_point:
        return False
    ends = ("source", "destination") if rank == one.source else ("destination", "source")
    own, peers = ({getattr(channel, end) for channel in (one, other)} for end in ends)
    return own == {rank} and len(peers) == 2


def _was_next(progress: Progress | None, sequence: int, operation: OperationView) -> bool:
    """Whether the line of an operation has served a channel until now, in which it would be the next one's turn."""
    if progress is None or not progress.aligned or progress.entered != sequence - 1 or operation.call_site is None:
        return False
    site = operation.call_site
    lines = {(one.frames[0].file, one.frames[0].line) for one in progress.recent if one.frames}
    return (site.file, site.line) in lines
