"""Ranks that wait for each other in a circle: which of them is at fault, if the records show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from otel_torchdist.tape.layout import RecordKind
from otel_torchdist.verdict.judging.creations import other_call
from otel_torchdist.verdict.model import Doubt, Link, Verdict, VerdictKind, verdict_at
from otel_torchdist.verdict.roll_call import RollCall
from otel_torchdist.world.calls import OperationView
from otel_torchdist.world.remote_waits import RemoteWait


class Hop(NamedTuple):
    """A step of the search: from an operation at which a rank is missing to one in which that rank waits.

    Attributes:
        roll: The operation at which the rank is missing.
        rank: The rank.
        waits_in: The operation in which it waits.
        is_own_thread: Whether the thread that waits there is one that enters the channel of the first operation.
        remote: The remote procedure call in which it waits, if that is how it does: the function is in the operation.
    """

    roll: RollCall
    rank: int
    waits_in: OperationView
    is_own_thread: bool
    remote: RemoteWait | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        """The rank, and the one that it has called."""
        return (self.rank,) if self.remote is None or self.remote.rank is None else (self.rank, self.remote.rank)


def judge_circle(hops: Sequence[Hop]) -> Verdict:
    """Judge ranks that wait for each other; the verdict does not depend on where the circle was entered.

    A rank that is not seen to block may be busy with something else. If it is the only one, it is absent.

    Args:
        hops: Each waits where the next one is missing, the last where the first is missing.
    """
    free = [hop for hop in hops if not hop.waits_in.record.is_blocking]
    if len(free) == 1:
        return verdict_at(VerdictKind.ABSENT, free[0].roll, (free[0].rank,))
    first = min((hop.roll for hop in hops), key=_age)
    ranks = tuple(sorted({rank for hop in hops for rank in hop.ranks}))
    if free:
        return verdict_at(VerdictKind.UNKNOWN, first, ranks, Doubt.CYCLE)
    if not all(hop.is_own_thread for hop in hops):
        return verdict_at(VerdictKind.UNKNOWN, first, ranks, Doubt.THREADS, circle=_links(hops))
    if any(hop.remote is not None for hop in hops):
        return verdict_at(VerdictKind.CIRCULAR, first, ranks, circle=_links(hops))
    return _left_out(hops) or _unmatched(hops) or verdict_at(VerdictKind.CIRCULAR, first, ranks, circle=_links(hops))


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


def _unmatched(hops: Sequence[Hop]) -> Verdict | None:
    """The oldest send or receive whose other side does not seem to exist.

    Its peer waits for that very rank in something else: in a collective, or in a send or receive with another tag. A
    peer that waits for a third rank may still come. Where all ranks of a circle send to or receive from the next one,
    they have only chosen the wrong order.
    """
    channels = [hop.roll.operation_id.channel for hop in hops]
    ends = {(channel.source, channel.destination) for channel in channels}
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
    """Which rank waits where, starting with the lowest rank."""
    links = [
        Link(hop.rank, hop.waits_in.operation_id, hop.waits_in.name, hop.waits_in.group, hop.waits_in.label, hop.remote)
        for hop in hops
    ]
    lowest = min(range(len(links)), key=lambda place: links[place].rank)
    return (*links[lowest:], *links[:lowest])
