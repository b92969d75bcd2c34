"""Builds a snapshot from the lines of NCCL's watchdogs, for the judge.

A watchdog tells of its own rank: which operation of which group timed out, and how far the rank had come in the group.
Ranks that did not time out tell how far they had come in the default group when they were asked for a dump. So the
ranks that have not enqueued what others wait for can be named there. Elsewhere only what was called is compared: a
rank that hangs writes nothing, so that a group whose ranks have all come looks like one that lacks some. But a
rank whose operation timed out in another group waits there, and is not blamed for not having come to this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from otel_torchdist.judge.world.places import user_frame
from otel_torchdist.model.calls import Arrival, Channel, GroupView, OperationId, OperationView, Progress
from otel_torchdist.model.collectives import MESSAGES, operations_where
from otel_torchdist.model.kinds import Flag, RecordKind, TapeState
from otel_torchdist.model.names import DEFAULT_DESCRIPTION, CallSiteName, GroupName, SignatureName
from otel_torchdist.model.operations import Operation
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.sources.evidence.facts import CalledAt, GroupMark, Reached, TimedOut
from otel_torchdist.sources.evidence.statements import Statement

NOW_NS: Final = 1 << 60
"""When the snapshot is taken, on a clock of its own: only ages are known."""
_POINT_TO_POINT: Final = MESSAGES | {"coalesced", "unknown"}
_SAME_SIZE: Final = operations_where(
    lambda row: row.family.moves_data and row.family.is_in_place and not (row.family.is_message or row.is_coalesced)
)
"""Operations whose tensors have the same number of elements on all ranks."""
_DEFAULT: Final = "0"
_NO_FLAGS: Final = Flag(0)


@dataclass(frozen=True, slots=True)
class _Stuck:
    rank: int
    operation: TimedOut
    called: CallSiteName | None


def snapshot_of(statements: Iterable[Statement]) -> WorldSnapshot | None:
    """Return what the ranks were doing when the first operation of the default group timed out.

    Returns:
        None if no watchdog speaks of an operation of that group, or if its lines are those of several attempts.
    """
    own = [one for one in statements if one.rank is not None]
    stuck = _stuck(own)
    reached = _reached(own)
    if not stuck:
        return None
    members = tuple(range(1 + max([*(one.rank for one in stuck), *reached])))
    name = GroupName(_DEFAULT, DEFAULT_DESCRIPTION, members, 0, "nccl", True)
    group = GroupView(name.key, name, frozenset(members))
    by_rank = {one.rank: one for one in stuck}
    ranks = {
        rank: _view(rank, by_rank.get(rank), reached.get(rank), group) for rank in sorted(by_rank.keys() | reached)
    }
    for one in own:
        if one.rank in ranks and one.rank not in by_rank and isinstance(one.fact, TimedOut):
            view = ranks[one.rank]
            ranks[one.rank] = replace(view, open=(*view.open, _elsewhere(one, one.rank, one.fact)))
    return WorldSnapshot(0, NOW_NS, ranks)


def _elsewhere(one: Statement, rank: int, fact: TimedOut) -> OperationView:
    """Return an operation of a group whose members are not known."""
    name = one.group.uid if one.group is not None else ""
    operation_id = OperationId(Channel(RecordKind.OPERATION, f"other group {name}"), fact.sequence or 1)
    return _operation(_Stuck(rank, fact, None), operation_id, None, None)


def _stuck(statements: Sequence[Statement]) -> list[_Stuck]:
    """Return the operation of the default group that timed out on each rank."""
    called = {one.rank: user_frame(one.fact.frames) for one in statements if isinstance(one.fact, CalledAt)}
    failed = {(one.rank, one.fact.failed) for one in statements if isinstance(one.fact, Reached) and _is_default(one)}
    found: dict[int, _Stuck] = {}
    for one in statements:
        fact, rank = one.fact, one.rank
        if not isinstance(fact, TimedOut) or rank is None or not fact.sequence or fact.operation in _POINT_TO_POINT:
            continue
        if _is_default(one) or (_names_no_group(one.group) and (rank, fact.sequence) in failed):
            before = found.get(rank)
            if before is not None and before.operation.sequence != fact.sequence:
                return []
            found[rank] = _Stuck(rank, fact, called.get(rank))
    return list(found.values())


def _reached(statements: Iterable[Statement]) -> Mapping[int, Reached]:
    found: dict[int, Reached] = {}
    for one in statements:
        if isinstance(one.fact, Reached) and one.rank is not None and _is_default(one):
            before = found.get(one.rank)
            if before is None or one.fact.enqueued >= before.enqueued:
                found[one.rank] = one.fact
    return found


def _is_default(one: Statement) -> bool:
    return one.group is not None and one.group.is_default


def _names_no_group(group: GroupMark | None) -> bool:
    return group is None or not (group.uid or group.description)


def _view(rank: int, stuck: _Stuck | None, reached: Reached | None, group: GroupView) -> RankView:
    channel = Channel(RecordKind.OPERATION, group.key)
    signature = _signature(stuck.operation) if stuck is not None else None
    sequence = (stuck.operation.sequence if stuck is not None else None) or 0
    entered = max(reached.enqueued if reached is not None else 0, sequence, 0)
    completed = max(reached.completed if reached is not None else 0, 0)
    progress = Progress(
        entered=entered,
        completed=min(completed, sequence - 1) if sequence else completed,
        recent=(Arrival(sequence, signature, -1),) if sequence else (),
    )
    open_here = (_operation(stuck, OperationId(channel, sequence), group, signature),) if stuck is not None else ()
    return RankView(
        rank=rank,
        nonce=rank + 1,
        run=0,
        run_is_sure=True,
        host="",
        created_ns=0,
        alive=True,
        state=TapeState.RUNNING,
        failure="",
        gone_since_ns=None,
        heartbeat_ns=NOW_NS,
        step=0,
        open=open_here,
        last=None,
        progress={channel: progress},
        losses=0,
        forgotten=False,
        wall_offset_ns=0,
        stacks=None,
        groups={group.key: group},
    )


def _signature(operation: TimedOut) -> SignatureName:
    shapes: tuple[tuple[int, ...], ...] = ()
    if operation.operation in _SAME_SIZE and operation.elements_in is not None:
        shapes = ((operation.elements_in,),)
    return SignatureName(operation.operation, "", shapes, (), "cuda", len(shapes))


def _operation(
    stuck: _Stuck, operation_id: OperationId, group: GroupView | None, signature: SignatureName | None
) -> OperationView:
    entered_ns = NOW_NS - (stuck.operation.age_ms or 0) * 1_000_000
    record = Operation(
        number=1,
        kind=RecordKind.OPERATION,
        entered_ns=entered_ns,
        step=0,
        sequence=operation_id.sequence,
        message_bytes=0,
        group=1 if group is not None else 0,
        signature=1 if signature is not None else 0,
        call_site=1 if stuck.called is not None else 0,
        label=0,
        peer=-1,
        tag=0,
        thread=0,
        flags=_NO_FLAGS,
    )
    name = stuck.operation.operation
    return OperationView(record, name, operation_id, group, signature, stuck.called, "", "", entered_ns)
