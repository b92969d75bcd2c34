"""What surrounds a stalled operation: checkpoints that its ranks are in, and waits behind other waits.

Nothing here decides which rank is named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from otel_torchdist.judge.verdict.roll_call import RollCall, Standing, call_roll, open_by_operation
from otel_torchdist.model.calls import GroupView, OperationId, OperationView
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.naming import MemberRank
from otel_torchdist.model.occupations import CheckpointView
from otel_torchdist.model.snapshot import RankView, WorldSnapshot

# --- checkpoints ------------------------------------------------------------------------------------------------------
# In which checkpoint the ranks of a verdict are: words for its sentence, and a reason for patience.
# Nothing here decides which rank is named.


PATIENCE: Final = 5
"""A stage may take this many times as long as it usually does."""
MOST_ADDED_NS: Final = 300_000_000_000
"""How much longer than usual at most: backends give up after ten minutes."""


def checkpoint_of(world: WorldSnapshot, rank: int, roll: RollCall) -> CheckpointView | None:
    """The checkpoint in which a member of a roll call is, so far as it has to do with the operation.

    That is the one of the thread that waits in it. A rank that is missing is in the checkpoint in which others wait for
    it; else in that of the only thread that enters such operations.
    """
    view = world.ranks[rank]
    waiting = roll.waits.get(rank)
    if waiting is not None:
        return view.checkpoints.of_thread(waiting.record.thread)
    if not view.checkpoints.open:
        return None
    shared = _shared(world, roll.waits)
    if shared is not None:
        return next((one for one in view.checkpoints.open if one.is_shared_with(shared)), None)
    return _of_only_thread(view, roll.operation_id)


def _shared(world: WorldSnapshot, waits: Mapping[int, OperationView]) -> CheckpointView | None:
    """The checkpoint in which the first rank waits that is in one."""
    for rank, operation in sorted(waits.items()):
        found = world.ranks[rank].checkpoints.of_thread(operation.record.thread)
        if found is not None:
            return found
    return None


def _of_only_thread(view: RankView, operation_id: OperationId) -> CheckpointView | None:
    progress = view.progress.get(operation_id.channel)
    threads = progress.threads if progress is not None else ()
    return view.checkpoints.of_thread(threads[0]) if len(threads) == 1 else None


def takes_its_usual_time(checkpoint: CheckpointView | None, now_ns: int) -> bool:
    """Whether a rank has been in a stage for no longer than that may take."""
    if checkpoint is None or not checkpoint.usual_ns:
        return False
    usual_ns = checkpoint.usual_ns
    return now_ns - checkpoint.since_ns < min(PATIENCE * usual_ns, usual_ns + MOST_ADDED_NS)


# --- waits behind waits -----------------------------------------------------------------------------------------------
# Waits that lead from one world of a process through another: who waits behind whom, and where.
# A trainer waits for its engine in one world, and its other ranks wait for it in another. A verdict is on one
# operation; without the waits behind it a reader would not see that these are one incident.


MAX_BEHIND: Final = 3
"""Operations that are described."""


@dataclass(frozen=True, slots=True)
class WaitBehind:
    """Ranks that wait in one operation for others.

    Attributes:
        ranks: The ranks, ascending.
        for_ranks: The ranks that they wait for.
        operation_id: The operation.
        operation: Its name.
        group: Its group; None if it is not known.
        call_site: Where the first of them called it; None if that is not known.
    """

    ranks: tuple[int, ...]
    for_ranks: tuple[int, ...]
    operation_id: OperationId
    operation: str
    group: GroupView | None
    call_site: CallSiteName | None


def waits_behind(world: WorldSnapshot, roll: RollCall, ranks: Collection[int]) -> tuple[WaitBehind, ...]:
    """Who waits in an operation and, from there on, in others; nothing if all of them are of one world.

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
    found = [_behind(waiting, tuple(sorted(ranks)), roll.operation_id)]
    found += _further(world, {*waiting}, roll.operation_id)
    met = {rank for one in found for rank in (*one.ranks, *one.for_ranks)}
    is_across = any(isinstance(rank, MemberRank) for rank in met) and len(found) > 1
    return tuple(found[:MAX_BEHIND]) if is_across else ()


def _further(world: WorldSnapshot, held: set[int], known: OperationId) -> Iterator[WaitBehind]:
    left = {operation_id: one for operation_id, one in open_by_operation(world).items() if operation_id != known}
    while left:
        for operation_id, here in sorted(left.items()):
            roll = call_roll(world, operation_id, here)
            behind = {rank: one for rank, one in roll.waits.items() if world.ranks[rank].waits_in(one)}
            absent = tuple(sorted(held & {*roll.ranks(Standing.ABSENT)}))
            if behind and absent and not held & behind.keys():
                del left[operation_id]
                held |= behind.keys()
                yield _behind(behind, absent, operation_id)
                break
        else:
            return


def _behind(waiting: dict[int, OperationView], for_ranks: tuple[int, ...], operation_id: OperationId) -> WaitBehind:
    first = waiting[min(waiting)]
    return WaitBehind(tuple(sorted(waiting)), for_ranks, operation_id, first.name, first.group, first.call_site)
