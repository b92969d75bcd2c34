"""In which checkpoint the ranks of a verdict are: words for its sentence, and a reason for patience.

Nothing here decides which rank is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otel_torchdist.model.calls import OperationId, OperationView
from otel_torchdist.model.checkpoints import CheckpointView
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.verdict.roll_call import RollCall

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
