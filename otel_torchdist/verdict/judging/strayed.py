"""Sends and receives that have gone to another rank than those of the same line before them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from otel_torchdist.model.calls import Channel, OperationId, OperationView, Progress
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.verdict.judging.circles import Hop


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
