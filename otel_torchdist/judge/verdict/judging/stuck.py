"""Finds ranks that do not leave a collective although others have: their device or connection is stuck or broken.

In a synchronizing collective, each member's result depends on the contributions of all others. So a rank that leaves it
proves that all others have entered and contributed. Two conclusions follow:

- A rank has left a *later* collective of the group in which this rank takes part too. A communicator runs its
  collectives in order, so this rank's device has completed this collective, but its completion is not visible: its
  context is broken, or no thread polls it any more. No other rank can be the reason.
- *All* others have left this collective. They have no data left to send to this rank.

If several ranks remain in the last collective that the others have left, one of them may wait for data that another
should have forwarded, since rings and trees forward data from member to member. Then no rank is named.

Ends are recorded late, and ranks are never read at the same moment. So this rank must have been in the collective for
the threshold, the others must have left it some time ago, each by its own clock, and their counts must be consistent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_torchdist.judge.verdict.roll_call import RollCall, Standing, members_of, since_of
from otel_torchdist.judge.verdict.rules import waits_of
from otel_torchdist.model.calls import Channel, OperationView
from otel_torchdist.model.collectives import BARRIER, COLLECTIVES, SizeRule, Waiting
from otel_torchdist.model.kinds import Flag
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.node.processes.state import HEARTBEAT_LATE_NS

TRAIL_NS: Final = HEARTBEAT_LATE_NS + 2_000_000_000
"""Maximum delay in ns from an end to its observation. Watchdogs poll every second, agents on other nodes answer later,
and a GIL held by native code shows only once the heartbeat is late."""
_ON_DEVICE: Final = int(Flag.ON_DEVICE)


def stuck_ranks(world: WorldSnapshot, roll: RollCall, threshold_ns: int) -> tuple[int, ...]:
    """Return the ranks that do not leave an operation because of their own device or connection, ascending.

    Args:
        world: The snapshot.
        roll: The standing of each member; all of them report.
        threshold_ns: Minimum time in the operation.
    """
    out = _observed_ends(world, roll)
    if out is None:
        return ()
    return tuple(
        rank
        for rank, operation in sorted(roll.waits.items())
        if roll.standings[rank] is Standing.WAITING
        and world.taken_ns - since_of(operation) >= threshold_ns
        and _is_consistent(world, world.ranks[rank], operation, out)
        and _would_record_end(world, world.ranks[rank], operation, threshold_ns)
        and (_contributed_later(world.ranks[rank], operation, out) or _is_last(world.ranks[rank], operation, roll, out))
    )


@dataclass(frozen=True, slots=True)
class _MembersOut:
    """The members seen to leave an operation.

    Attributes:
        up_to: Highest sequence number that any of these members has left.
        count: Number of these members.
    """

    up_to: int
    count: int


def _observed_ends(world: WorldSnapshot, roll: RollCall) -> _MembersOut | None:
    """Return the members seen to leave an operation; None if there are none, or if the latest left only just now."""
    channel, sequence = roll.operation_id
    reached = [world.ranks[rank].progress[channel] for rank in roll.ranks(Standing.OUT)]
    seen = [progress.end_observed for progress in reached if progress.end_observed >= sequence]
    if not seen or max(progress.end_observed_ns for progress in reached) > world.taken_ns - TRAIL_NS:
        return None
    return _MembersOut(max(seen), len(seen))


def _is_consistent(world: WorldSnapshot, view: RankView, operation: OperationView, out: _MembersOut) -> bool:
    """Return whether the snapshot is consistent and complete enough to name a stuck rank.

    If another rank has left an operation that this rank has not entered, this rank was read earlier. An unseen rank may
    block this rank, by the same cause that keeps its host or device from polling.
    """
    channel, sequence = operation.operation_id
    progress = view.progress.get(channel)
    if progress is None or not progress.completed < sequence <= out.up_to <= progress.entered:
        return False
    if any(inside.group is None for inside in view.open):
        return False
    return all(members <= world.ranks.keys() for members in {members_of(inside) for inside in view.open})


def _would_record_end(world: WorldSnapshot, view: RankView, operation: OperationView, threshold_ns: int) -> bool:
    """Return whether an end would have been recorded, because a thread waits for it or polls a device.

    Native code that holds the GIL stops both threads. Then the rank is to blame only if others wait for it.
    """
    if not _is_on_device(operation) and not operation.record.is_blocking:
        return False
    if world.taken_ns - view.heartbeat_ns <= HEARTBEAT_LATE_NS:
        return True
    return _is_awaited(world, view, operation.operation_id.channel, threshold_ns)


def _is_awaited(world: WorldSnapshot, view: RankView, channel: Channel, threshold_ns: int) -> bool:
    """Return whether others have waited for the threshold in a later operation that this rank has not entered."""
    entered = view.progress[channel].entered
    return any(
        world.taken_ns - wait.since_ns >= threshold_ns
        for wait in waits_of(world)
        if wait.operation.operation_id.channel == channel and wait.operation.operation_id.sequence > entered
    )


def _contributed_later(view: RankView, operation: OperationView, out: _MembersOut) -> bool:
    """Return whether any rank has left a later collective that needed this rank. Only device operations are ordered."""
    channel, sequence = operation.operation_id
    return _is_on_device(operation) and any(
        later.operation_id.channel == channel
        and sequence < later.operation_id.sequence <= out.up_to
        and _needs(view, later)
        for later in view.open
    )


def _is_last(view: RankView, operation: OperationView, roll: RollCall, out: _MembersOut) -> bool:
    """Return whether all others have left the operation.

    Off devices, operations are unordered, so this requires that no rank has left a later operation.
    """
    if out.count < len(roll.members) - 1:
        return False
    return _needs(view, operation) and (_is_on_device(operation) or out.up_to == operation.operation_id.sequence)


def _needs(view: RankView, operation: OperationView) -> bool:
    """Return whether no rank leaves an operation before this rank has contributed.

    If a rank may contribute nothing to another's result, its device need not have reached the operation, unless nothing
    is ahead of it.
    """
    if operation.name == BARRIER:
        return True
    row = COLLECTIVES.get(operation.name)
    if row is None or not row.family.moves_data or row.family.waiting is not Waiting.EVERYONE:
        return False
    return bool(operation.record.message_bytes) and (row.sizes is not SizeRule.PER_PAIR or operation is view.open[0])


def _is_on_device(operation: OperationView) -> bool:
    return bool(int(operation.record.flags) & _ON_DEVICE)
