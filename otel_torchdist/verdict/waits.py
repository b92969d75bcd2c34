"""The waits of a snapshot: open operations that are evidence, and those that a death left behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.calls import OperationId, OperationView
from otel_torchdist.model.kinds import How, TapeState
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.verdict.ways import has_raised

DYING_NS: Final = 500_000_000
"""A rank that dies in an operation may still be seen alive for this long, while the kernel closes its files."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait of a rank in an operation.

    Attributes:
        view: The rank.
        operation: The operation in which it waits.
        since_ns: When it began to wait.
    """

    view: RankView
    operation: OperationView
    since_ns: int

    @property
    def key(self) -> tuple[int, int]:
        """Identifies the operation among all tapes."""
        return self.view.nonce, self.operation.record.number


def waits_of(world: WorldSnapshot) -> list[Wait]:
    """All waits, the longest first."""
    waits = [
        Wait(view, operation, operation.waiting_since_ns)
        for view in world.ranks.values()
        for operation in view.open
        if operation.waiting_since_ns is not None and view.waits_in(operation)
    ]
    return sorted(waits, key=lambda wait: (wait.since_ns, wait.view.rank, wait.operation.record.number))


def left_behind(world: WorldSnapshot, alive_at: dict[int, int]) -> set[OperationId]:
    """Operations in which ranks wait, or were interrupted while waiting, after a member has died.

    Ranks that were gone when a death was found prove nothing: their launcher may have ended all of them.

    Args:
        world: The snapshot.
        alive_at: By rank, the monotonic time at which it was last seen alive.
    """
    found: set[OperationId] = set()
    for dead in world.ranks.values():
        seen_ns = dead.gone_since_ns
        if not dead.is_dead or seen_ns is None:
            continue
        for view in world.ranks.values():
            if view.gone_since_ns is None or view.gone_since_ns > seen_ns:
                left = [
                    *_waits_after(view, seen_ns, world.taken_ns),
                    *_interrupted_after(view, alive_at.get(dead.rank)),
                ]
                found.update(operation.operation_id for operation in left if _takes_part(dead.rank, operation))
    return found


def died_in(world: WorldSnapshot) -> set[OperationId]:
    """Operations in which ranks were when their processes ended, or in which they were interrupted before that."""
    dead = [view for view in world.ranks.values() if view.is_dead]
    interrupted = [view.last for view in dead if view.last is not None and view.last.record.how is How.FAILED]
    return {operation.operation_id for view in dead for operation in view.open} | {
        operation.operation_id for operation in interrupted
    }


def interrupted_by_deaths(world: WorldSnapshot) -> set[OperationId]:
    """Operations in which ranks were interrupted after the last sign of life of a member that is now gone.

    Unlike in `left_behind`, they may all be gone by now: a launcher ends the others within a moment. If an agent comes
    only then, it is known that the member was the first where its launcher has recorded how it ended; or where another
    one could still record that it failed, and the member itself recorded no failure, or an exception of its own.
    """
    found: set[OperationId] = set()
    for dead in world.ranks.values():
        if not dead.is_dead or not (dead.seen_alive_ns or dead.is_new):
            continue
        interrupted = (
            operation_id
            for view in world.ranks.values()
            if view is not dead
            for operation_id in _interrupted_operations(view, dead)
        )
        found.update(interrupted)
    return found


def _interrupted_operations(view: RankView, dead: RankView) -> list[OperationId]:
    if dead.seen_alive_ns:
        alive_ns = dead.seen_alive_ns
    elif dead.death is not None or (
        view.state is TapeState.FAILED and (dead.state is not TapeState.FAILED or has_raised(dead))
    ):
        alive_ns = dead.heartbeat_ns
    else:
        return []
    interrupted = _interrupted_after(view, alive_ns)
    return [operation.operation_id for operation in interrupted if _takes_part(dead.rank, operation)]


def _waits_after(view: RankView, seen_ns: int, now_ns: int) -> list[OperationView]:
    """Where a rank waits, from the second pass after a death on: by then all that the dead rank wrote has been read."""
    if seen_ns >= now_ns:
        return []
    return [operation for operation in view.open if operation.waiting_since_ns is not None]


def _interrupted_after(view: RankView, alive_ns: int | None) -> list[OperationView]:
    """What raised after the dead rank was last seen alive, or shortly before: its sockets close before its lock."""
    last = view.last
    if last is None or alive_ns is None or last.record.how is not How.FAILED:
        return []
    return [last] if (last.record.completed_ns or 0) >= alive_ns - DYING_NS else []


def _takes_part(rank: int, operation: OperationView) -> bool:
    channel = operation.operation_id.channel
    if channel.is_point_to_point:
        return rank in (channel.source, channel.destination)
    return operation.group is not None and rank in operation.group.members
