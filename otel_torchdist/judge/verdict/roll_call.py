"""The roll call of an operation: the standing of each member of its group."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.calls import ANY_RANK, GroupView, OperationId, OperationView
from otel_torchdist.model.kinds import Blame, RecordKind, TapeState
from otel_torchdist.model.snapshot import RankView, WorldSnapshot

HOST: Final = 0
"""The rank that hosts the store, unless the launcher hosts it."""


class Standing(enum.Enum):
    """The standing of one member at one operation. The value is used in span names."""

    DEAD = "dead"
    """Its process is gone and did not end cleanly."""
    ABSENT = "absent"
    """Alive, and has not entered."""
    ENDED = "ended"
    """Left the run cleanly before the operation was over."""
    QUEUED = "queued"
    """Has enqueued it, but its device has not reached it yet: earlier work of the rank is in front of it."""
    RAISED = "raised"
    """Its call raised before the operation was issued."""
    WAITING = "waiting"
    """Entered; no end recorded."""
    FAILED = "failed"
    """Entered, and left with an exception."""
    OUT = "out"
    """Entered and left."""
    UNSURE = "unsure"
    """Reports, but its records do not show whether it entered."""
    SILENT = "silent"
    """Does not report: on another node, or not instrumented."""


class Presence(enum.Enum):
    """Whether a member has called an operation."""

    CAME = enum.auto()
    """It has called the operation."""
    ELSEWHERE = enum.auto()
    """It has not called the operation."""
    UNKNOWN = enum.auto()


def _presence(standing: Standing) -> Presence:
    match standing:
        case Standing.WAITING | Standing.FAILED | Standing.OUT | Standing.RAISED:
            return Presence.CAME
        case Standing.ABSENT | Standing.ENDED | Standing.QUEUED:
            return Presence.ELSEWHERE
        case Standing.DEAD | Standing.UNSURE | Standing.SILENT:
            return Presence.UNKNOWN


def _is_gone(standing: Standing) -> bool:
    match standing:
        case Standing.DEAD | Standing.ENDED:
            return True
        case (
            Standing.ABSENT
            | Standing.QUEUED
            | Standing.RAISED
            | Standing.WAITING
            | Standing.FAILED
            | Standing.OUT
            | Standing.UNSURE
            | Standing.SILENT
        ):
            return False


CAME: Final = tuple(standing for standing in Standing if _presence(standing) is Presence.CAME)
ELSEWHERE: Final = tuple(standing for standing in Standing if _presence(standing) is Presence.ELSEWHERE)
GONE: Final = tuple(standing for standing in Standing if _is_gone(standing))
"""Standings of ranks whose processes have ended."""


@dataclass(frozen=True, slots=True)
class RollCall:
    """The standing of each reporting member.

    Attributes:
        operation: Name of the operation on the waiting ranks.
        group: None if no name dictionary contains the group.
        members: All ranks that should enter the operation.
        standings: By rank, for members that report.
        waits: Operations of waiting ranks, by rank. If no rank waits any more, operations that are open without a
            waiting thread, or whose wait failed.
        aligned: Whether the sequence number of the waiting ranks is comparable with the numbers of other ranks.
    """

    operation_id: OperationId
    operation: str
    group: GroupView | None
    members: frozenset[int]
    standings: Mapping[int, Standing]
    waits: Mapping[int, OperationView]
    aligned: bool

    def ranks(self, *standings: Standing) -> tuple[int, ...]:
        """Return the members with one of these standings, ascending."""
        return tuple(sorted(rank for rank, standing in self.standings.items() if standing in standings))

    @property
    def silent(self) -> int:
        """Number of members that do not report."""
        return len(self.members) - len(self.standings)

    @property
    def unseen(self) -> tuple[int, ...]:
        """Members that do not report, ascending."""
        return tuple(sorted(self.members - self.standings.keys()))

    @property
    def since_ns(self) -> int:
        """When the first of the waiting ranks began to wait."""
        return min(since_of(operation) for operation in self.waits.values())

    @property
    def last_entered_ns(self) -> int:
        """When the last of the waiting ranks entered."""
        return max(operation.record.arrived_ns for operation in self.waits.values())


def since_of(operation: OperationView) -> int:
    """Return when the wait of an open operation began, or when it was entered if no thread waits."""
    since = operation.waiting_since_ns
    return operation.record.entered_ns if since is None else since


def open_by_operation(world: WorldSnapshot) -> dict[OperationId, dict[int, OperationView]]:
    """Return all open operations, by operation id and then by rank."""
    by_operation: dict[OperationId, dict[int, OperationView]] = {}
    for rank, view in world.ranks.items():
        for operation in view.open:
            by_operation.setdefault(operation.operation_id, {})[rank] = operation
    return by_operation


def call_roll(world: WorldSnapshot, operation_id: OperationId, open_here: Mapping[int, OperationView]) -> RollCall:
    """Determine the standing of each reporting member at `operation_id`, where at least one rank waits or has failed.

    Args:
        world: The snapshot.
        operation_id: The operation.
        open_here: Open operations of the ranks inside it, by rank.
    """
    waits = {
        rank: operation
        for rank, operation in open_here.items()
        if world.ranks[rank].alive and not operation.record.is_queued
    }
    waits = waits or dict(open_here) or _failed_here(world, operation_id)
    first = waits[min(waits)]
    lost_host = _lost_host(world, first)
    members = members_of(first) | waits.keys() | lost_host
    standings = {
        rank: _standing(view, operation_id, open_here.get(rank))
        for rank, view in world.ranks.items()
        if rank in members
    }
    if lost_host:  # a creation that raises counts as not entered
        standings |= {rank: Standing.FAILED for rank in waits.keys() - lost_host if rank in world.ranks}
    aligned = _is_aligned(world, first) and all(
        operation.group is None or operation.group.name.aligned for operation in waits.values()
    )
    return RollCall(operation_id, first.name, first.group, members, standings, waits, aligned)


def _lost_host(world: WorldSnapshot, operation: OperationView) -> frozenset[int]:
    """Return the rank that hosts the store, if it has ended and others lost a connection during a group's creation.

    Members need the host even if it is not a member. If the launcher hosts the store, the end of rank 0 has no effect.
    """
    host = world.ranks.get(HOST)
    is_creation = operation.record.kind is RecordKind.RENDEZVOUS and operation.record.blame is Blame.CONNECTION
    return frozenset({HOST} if is_creation and host is not None and host.is_over else ())


def _failed_here(world: WorldSnapshot, operation_id: OperationId) -> dict[int, OperationView]:
    last = {rank: view.last for rank, view in world.ranks.items()}
    return {rank: operation for rank, operation in last.items() if operation and operation.operation_id == operation_id}


def members_of(operation: OperationView) -> frozenset[int]:
    """Return the ranks that take part in an operation; empty if unknown."""
    channel = operation.operation_id.channel
    if channel.is_point_to_point:
        return frozenset(rank for rank in (channel.source, channel.destination) if rank != ANY_RANK)
    return operation.group.members if operation.group is not None else frozenset()


def _is_aligned(world: WorldSnapshot, operation: OperationView) -> bool:
    """Return whether all ranks count the sequence equally. A receive from any source breaks its sender's count."""
    if operation.group is None or not operation.group.name.aligned:
        return False
    channel = operation.operation_id.channel
    if not channel.is_point_to_point:
        return True
    receiver = world.ranks.get(channel.destination)
    return receiver is None or channel._replace(source=ANY_RANK) not in receiver.progress


def _standing(view: RankView, operation_id: OperationId, operation: OperationView | None) -> Standing:
    channel, sequence = operation_id
    progress = view.progress.get(channel)
    certain = progress.losses == view.losses if progress else not view.losses and not view.forgotten
    if operation is None and progress is not None and progress.aligned and progress.entered >= sequence:
        if progress.failed == sequence:
            return Standing.FAILED
        # An operation without a recorded end may still be open.
        return Standing.OUT if certain or progress.completed >= sequence else Standing.UNSURE
    if view.is_dead:
        return Standing.DEAD
    if operation is None and (not view.alive or view.state is TapeState.FINISHED):
        return Standing.ENDED
    if not view.alive and not view.has_given_up:
        return Standing.ENDED
    if operation is not None:
        return Standing.QUEUED if operation.record.is_queued else Standing.WAITING
    if not certain or (progress is not None and not progress.aligned):
        return Standing.UNSURE
    if progress is not None and progress.failed == sequence:
        return Standing.RAISED
    return Standing.ABSENT
