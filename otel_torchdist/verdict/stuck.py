"""Ranks that have not come out of a collective although others have: something on their own side is stuck or broken.

In a collective that synchronizes, each member's result depends on what all others contribute. So whoever comes out of
it proves that all the others have entered it and done their part. Two things can be concluded:

- Someone has come out of a *later* collective of the group in which this rank takes part as well. A communicator runs
  its collectives in order, so this rank's device has been through this one, and its own side does not show that: its
  context is broken, or nothing there looks any more. No other rank can be the reason.
- *All* others have come out of this one. None of them has anything left to do for this rank.

Where several ranks are left in a collective that was the last for the others, one of them may wait for what another
should have passed on: rings and trees carry data from member to member. Then nobody is named.

Ends are known late, and ranks are never read at the same moment. So both this rank and those that have come out must
have been where they are for a while, each by its own clock, and their counts must be possible together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_torchdist.processes.state import HEARTBEAT_LATE_NS
from otel_torchdist.tape.layout import Flag
from otel_torchdist.verdict.roll_call import RollCall, Standing, members_of, since_of
from otel_torchdist.world.model import OperationView, Progress, RankView, WorldSnapshot

TRAIL_NS: Final = 3_000_000_000
"""An end may be seen this late: watchdogs look once a second or more often, and another node's agent answers later."""
_NEEDS_ALL: Final = frozenset(
    {
        "all_gather",
        "all_gather_coalesced",
        "all_gather_into_tensor",
        "all_gather_into_tensor_coalesced",
        "all_reduce",
        "all_reduce_coalesced",
        "barrier",
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced",
    }
)
_MAY_NEED_NONE: Final = frozenset({"all_to_all", "all_to_all_single", "reduce_scatter"})
"""What one member contributes to the result of another may be empty."""
_ON_DEVICE: Final = int(Flag.ON_DEVICE)


def stuck_ranks(world: WorldSnapshot, roll: RollCall, threshold_ns: int, awaited: int | None) -> tuple[int, ...]:
    """The ranks that have not come out of an operation for a reason of their own, ascending.

    Args:
        world: The snapshot.
        roll: The standing of every member; all of them report.
        threshold_ns: How long they and the others must have been where they are.
        awaited: The rank for which others wait elsewhere; None if none is known.
    """
    if roll.operation_id.channel.is_point_to_point:
        return ()
    others_out = _seen_out(world, roll, max(threshold_ns, TRAIL_NS))
    if others_out is None:
        return ()
    return tuple(
        rank
        for rank in roll.ranks(Standing.WAITING)
        if rank in roll.waits and _is_stuck(_Candidate(world, roll, rank, threshold_ns), others_out, rank == awaited)
    )


@dataclass(frozen=True, slots=True)
class _OthersOut:
    """The members that were seen to come out of an operation.

    Attributes:
        up_to: The highest sequence out of which one of them has come.
        count: How many they are.
        lost_none: Whether the records of all of them are complete.
    """

    up_to: int
    count: int
    lost_none: bool


def _seen_out(world: WorldSnapshot, roll: RollCall, quiet_ns: int) -> _OthersOut | None:
    """Who was seen to come out of an operation, `quiet_ns` ago or earlier; None if nobody, or if it goes on."""
    channel, sequence = roll.operation_id
    views = [world.ranks[rank] for rank in roll.ranks(Standing.OUT)]
    reached = {view.rank: view.progress.get(channel, Progress()) for view in views}
    if any(progress.seen_out_ns > world.taken_ns - quiet_ns for progress in reached.values()):
        return None
    seen = {rank: one for rank, one in reached.items() if one.seen_out >= sequence and one.seen_out == one.completed}
    if not seen:
        return None
    lost_none = all(seen[view.rank].losses == view.losses for view in views if view.rank in seen)
    return _OthersOut(max(progress.seen_out for progress in seen.values()), len(seen), lost_none)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A rank that is in an operation out of which others have come."""

    world: WorldSnapshot
    roll: RollCall
    rank: int
    threshold_ns: int

    @property
    def view(self) -> RankView:
        return self.world.ranks[self.rank]

    @property
    def operation(self) -> OperationView:
        return self.roll.waits[self.rank]

    @property
    def is_on_device(self) -> bool:
        return bool(int(self.operation.record.flags) & _ON_DEVICE)


def _is_stuck(candidate: _Candidate, others: _OthersOut, is_awaited: bool) -> bool:
    if not _is_possible(candidate, others) or not _has_looked(candidate, is_awaited):
        return False
    patience_ns = max(candidate.threshold_ns, TRAIL_NS, candidate.operation.tolerance_ns)
    if candidate.world.taken_ns - since_of(candidate.operation) < patience_ns:
        return False
    if candidate.is_on_device and _took_part_later(candidate, others.up_to):
        return True
    is_last = others.count == len(candidate.roll.members) - 1
    return is_last and (others.lost_none or candidate.is_on_device) and _needs(candidate.view, candidate.operation)


def _is_possible(candidate: _Candidate, others: _OthersOut) -> bool:
    """Whether what is known of all of them can be true at one moment.

    Nobody comes out of what this rank has not entered: then it was read before the others. And a rank that has no data
    may be what holds up this one, in whatever keeps its host or device from looking.
    """
    channel, sequence = candidate.roll.operation_id
    progress = candidate.view.progress.get(channel, Progress())
    if not progress.completed < sequence <= others.up_to <= progress.entered:
        return False
    return all(one.group is not None and members_of(one) <= candidate.world.ranks.keys() for one in candidate.view.open)


def _has_looked(candidate: _Candidate, is_awaited: bool) -> bool:
    """Whether it would show if the rank had come out: a thread waits for that, or polls a device.

    Native code that holds the GIL stops both. Then the rank is to blame only if others wait for it.
    """
    if not candidate.is_on_device and not candidate.operation.record.is_blocking:
        return False
    heartbeat_ns = candidate.view.heartbeat_ns
    return is_awaited or not heartbeat_ns or candidate.world.taken_ns - heartbeat_ns <= HEARTBEAT_LATE_NS


def _took_part_later(candidate: _Candidate, up_to: int) -> bool:
    """Whether a later collective of the group, out of which another rank has come, needed this one."""
    channel, sequence = candidate.roll.operation_id
    return any(
        operation.operation_id.channel == channel
        and sequence < operation.operation_id.sequence <= up_to
        and _needs(candidate.view, operation)
        for operation in candidate.view.open
    )


def _needs(view: RankView, operation: OperationView) -> bool:
    """Whether nobody comes out of an operation before this rank has done its part.

    Where a rank may contribute nothing to the result of another, its device may not have come to the operation yet,
    unless there is nothing before it.
    """
    if operation.name == "barrier":
        return True
    if not operation.record.message_bytes:
        return False
    return operation.name in _NEEDS_ALL or (operation.name in _MAY_NEED_NONE and operation is view.open[0])
