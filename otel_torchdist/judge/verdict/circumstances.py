"""Context of a stalled operation: the checkpoints that its ranks are in, and the waits in other worlds behind it.

This context adds to the sentence and can delay the report, but never decides which rank is named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from otel_torchdist.judge.verdict.roll_call import RollCall, Standing, call_roll, open_by_operation
from otel_torchdist.model.calls import GroupView, OperationId, OperationView
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.occupations import CheckpointView
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.model.text import MemberRank

# --- checkpoints ------------------------------------------------------------------------------------------------------
# The current checkpoint of a rank is stated in the sentence, and delays the report.


PATIENCE: Final = 5
"""Limit of a stage's duration, as a multiple of its usual duration."""
MAX_ADDED_NS: Final = 300_000_000_000
"""Upper bound in ns on the time granted beyond the usual duration. Backends give up after ten minutes."""


def checkpoint_of(world: WorldSnapshot, rank: int, roll: RollCall) -> CheckpointView | None:
    """Return the checkpoint of a roll call's member, or None if it is unrelated to the operation.

    For a waiting rank this is the checkpoint of the waiting thread. For a missing rank it is the checkpoint in which
    the others wait for it, or else the checkpoint of the only thread that enters such operations.
    """
    view = world.ranks[rank]
    waiting = roll.waits.get(rank)
    if waiting is not None:
        return view.checkpoints.of_thread(waiting.record.thread)
    if not view.checkpoints.open:
        return None
    shared = _shared(world, roll.waits)
    if shared is not None:
        return next((checkpoint for checkpoint in view.checkpoints.open if checkpoint.is_shared_with(shared)), None)
    return _of_only_thread(view, roll.operation_id)


def _shared(world: WorldSnapshot, waits: Mapping[int, OperationView]) -> CheckpointView | None:
    """Return the checkpoint of the first waiting rank that is in a checkpoint."""
    for rank, operation in sorted(waits.items()):
        checkpoint = world.ranks[rank].checkpoints.of_thread(operation.record.thread)
        if checkpoint is not None:
            return checkpoint
    return None


def _of_only_thread(view: RankView, operation_id: OperationId) -> CheckpointView | None:
    progress = view.progress.get(operation_id.channel)
    threads = progress.threads if progress is not None else ()
    return view.checkpoints.of_thread(threads[0]) if len(threads) == 1 else None


def takes_its_usual_time(checkpoint: CheckpointView | None, now_ns: int) -> bool:
    """Return whether a rank has been in a stage for no longer than `PATIENCE` and `MAX_ADDED_NS` allow."""
    if checkpoint is None or not checkpoint.usual_ns:
        return False
    usual_ns = checkpoint.usual_ns
    return now_ns - checkpoint.since_ns < min(PATIENCE * usual_ns, usual_ns + MAX_ADDED_NS)


# --- waits behind waits -----------------------------------------------------------------------------------------------
# Chains of waits across the worlds of a process. For example, a trainer waits for its engine in one world, while other
# ranks wait for the trainer in another world. A verdict is about one operation; the chain shows that the waits in both
# worlds are one incident.


MAX_BEHIND: Final = 3
"""Maximum number of operations in the chain."""


@dataclass(frozen=True, slots=True)
class WaitBehind:
    """One link of a chain of waits: ranks that wait in one operation for other ranks.

    Attributes:
        ranks: Ascending.
        for_ranks: The ranks that they wait for.
        group: None if unknown.
        call_site: Where the first rank called the operation; None if unknown.
    """

    ranks: tuple[int, ...]
    for_ranks: tuple[int, ...]
    operation_id: OperationId
    operation: str
    group: GroupView | None
    call_site: CallSiteName | None


def waits_behind(world: WorldSnapshot, roll: RollCall, ranks: Collection[int]) -> tuple[WaitBehind, ...]:
    """Return the chain of waits that leads to an operation; empty unless it crosses worlds.

    Args:
        world: The snapshot.
        roll: Roll call of the operation.
        ranks: The ranks that hold it up.
    """
    if not any(isinstance(rank, MemberRank) for rank in world.ranks):
        return ()
    waiting = {rank: operation for rank, operation in roll.waits.items() if world.ranks[rank].waits_in(operation)}
    if not waiting:
        return ()
    chain = [_behind(waiting, tuple(sorted(ranks)), roll.operation_id)]
    chain += _further(world, {*waiting}, roll.operation_id)
    involved = {rank for link in chain for rank in (*link.ranks, *link.for_ranks)}
    is_across = any(isinstance(rank, MemberRank) for rank in involved) and len(chain) > 1
    return tuple(chain[:MAX_BEHIND]) if is_across else ()


def _further(world: WorldSnapshot, held: set[int], root: OperationId) -> Iterator[WaitBehind]:
    remaining = {
        operation_id: open_operations
        for operation_id, open_operations in open_by_operation(world).items()
        if operation_id != root
    }
    while remaining:
        for operation_id, open_operations in sorted(remaining.items()):
            roll = call_roll(world, operation_id, open_operations)
            behind = {
                rank: operation for rank, operation in roll.waits.items() if world.ranks[rank].waits_in(operation)
            }
            absent = tuple(sorted(held & {*roll.ranks(Standing.ABSENT)}))
            if behind and absent and not held & behind.keys():
                del remaining[operation_id]
                held |= behind.keys()
                yield _behind(behind, absent, operation_id)
                break
        else:
            return


def _behind(waiting: dict[int, OperationView], for_ranks: tuple[int, ...], operation_id: OperationId) -> WaitBehind:
    first = waiting[min(waiting)]
    return WaitBehind(tuple(sorted(waiting)), for_ranks, operation_id, first.name, first.group, first.call_site)
