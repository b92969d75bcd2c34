"""Builds a snapshot from log lines of NCCL's watchdogs, for the judge.

A watchdog reports only on its rank: the operation and group that timed out, and the rank's progress in the group. Ranks
without a timeout report their progress in the default group when a dump is requested. So in the default group, the
snapshot shows which ranks have not enqueued the awaited operation. In other groups only the calls are compared: a
hanging rank writes nothing, so the log does not show whether a group is complete. If a rank's operation timed out in
another group, the rank waits there, and is not blamed for its absence in the default group.
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
from otel_torchdist.sources.evidence.facts import GroupMark, OperationTimeout, ReportedProgress, TimedOutCallStack
from otel_torchdist.sources.evidence.statements import Statement

NOW_NS: Final = 1 << 60
"""Time of the snapshot, on an artificial clock: logs state only ages."""
_POINT_TO_POINT: Final = MESSAGES | {"coalesced", "unknown"}
_SAME_SIZE: Final = operations_where(
    lambda row: row.family.moves_data and row.family.is_in_place and not (row.family.is_message or row.is_coalesced)
)
"""Operations whose tensors have the same number of elements on all ranks."""
_DEFAULT: Final = "0"
"""Name of the default group."""
_NO_FLAGS: Final = Flag(0)


@dataclass(frozen=True, slots=True)
class _StuckRank:
    """A rank whose operation timed out.

    Attributes:
        call_site: The call site of the operation; None if unknown.
    """

    rank: int
    operation: OperationTimeout
    call_site: CallSiteName | None


def snapshot_of(statements: Iterable[Statement]) -> WorldSnapshot | None:
    """Return the state of the ranks when the first operation of the default group timed out.

    Returns:
        The snapshot; None if no operation of the default group timed out, or if the lines are of several attempts.
    """
    attributed = [statement for statement in statements if statement.rank is not None]
    stuck = _stuck_ranks(attributed)
    progress = _progress_by_rank(attributed)
    if not stuck:
        return None
    members = tuple(range(1 + max([*(call.rank for call in stuck), *progress])))
    name = GroupName(_DEFAULT, DEFAULT_DESCRIPTION, members, 0, "nccl", True)
    group = GroupView(name.key, name, frozenset(members))
    by_rank = {call.rank: call for call in stuck}
    ranks = {
        rank: _view(rank, by_rank.get(rank), progress.get(rank), group) for rank in sorted(by_rank.keys() | progress)
    }
    for statement in attributed:
        if statement.rank in ranks and statement.rank not in by_rank and isinstance(statement.fact, OperationTimeout):
            view = ranks[statement.rank]
            ranks[statement.rank] = replace(
                view, open=(*view.open, _in_other_group(statement, statement.rank, statement.fact))
            )
    return WorldSnapshot(0, NOW_NS, ranks)


def _in_other_group(statement: Statement, rank: int, fact: OperationTimeout) -> OperationView:
    """Return an open operation of a group other than the default group. Its members are unknown."""
    name = statement.group.uid if statement.group is not None else ""
    operation_id = OperationId(Channel(RecordKind.OPERATION, f"other group {name}"), fact.sequence or 1)
    return _operation(_StuckRank(rank, fact, None), operation_id, None, None)


def _stuck_ranks(statements: Sequence[Statement]) -> list[_StuckRank]:
    """Return the operation of the default group that timed out on each rank; none if a rank has several."""
    call_sites = {
        statement.rank: user_frame(statement.fact.frames)
        for statement in statements
        if isinstance(statement.fact, TimedOutCallStack)
    }
    failed = {
        (statement.rank, statement.fact.failed)
        for statement in statements
        if isinstance(statement.fact, ReportedProgress) and _is_default(statement)
    }
    stuck: dict[int, _StuckRank] = {}
    for statement in statements:
        fact, rank = statement.fact, statement.rank
        if (
            not isinstance(fact, OperationTimeout)
            or rank is None
            or not fact.sequence
            or fact.operation in _POINT_TO_POINT
        ):
            continue
        if _is_default(statement) or (_names_no_group(statement.group) and (rank, fact.sequence) in failed):
            earlier = stuck.get(rank)
            if earlier is not None and earlier.operation.sequence != fact.sequence:
                return []
            stuck[rank] = _StuckRank(rank, fact, call_sites.get(rank))
    return list(stuck.values())


def _progress_by_rank(statements: Iterable[Statement]) -> Mapping[int, ReportedProgress]:
    progress: dict[int, ReportedProgress] = {}
    for statement in statements:
        if isinstance(statement.fact, ReportedProgress) and statement.rank is not None and _is_default(statement):
            earlier = progress.get(statement.rank)
            if earlier is None or statement.fact.enqueued >= earlier.enqueued:
                progress[statement.rank] = statement.fact
    return progress


def _is_default(statement: Statement) -> bool:
    return statement.group is not None and statement.group.is_default


def _names_no_group(group: GroupMark | None) -> bool:
    return group is None or not (group.uid or group.description)


def _view(rank: int, stuck: _StuckRank | None, reported: ReportedProgress | None, group: GroupView) -> RankView:
    channel = Channel(RecordKind.OPERATION, group.key)
    signature = _signature(stuck.operation) if stuck is not None else None
    sequence = (stuck.operation.sequence if stuck is not None else None) or 0
    entered = max(reported.enqueued if reported is not None else 0, sequence, 0)
    completed = max(reported.completed if reported is not None else 0, 0)
    progress = Progress(
        entered=entered,
        completed=min(completed, sequence - 1) if sequence else completed,
        recent=(Arrival(sequence, signature, -1),) if sequence else (),
    )
    open_operations = (
        (_operation(stuck, OperationId(channel, sequence), group, signature),) if stuck is not None else ()
    )
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
        open=open_operations,
        last=None,
        progress={channel: progress},
        losses=0,
        forgotten=False,
        wall_offset_ns=0,
        stacks=None,
        groups={group.key: group},
    )


def _signature(operation: OperationTimeout) -> SignatureName:
    shapes: tuple[tuple[int, ...], ...] = ()
    if operation.operation in _SAME_SIZE and operation.elements_in is not None:
        shapes = ((operation.elements_in,),)
    return SignatureName(operation.operation, "", shapes, (), "cuda", len(shapes))


def _operation(
    stuck: _StuckRank, operation_id: OperationId, group: GroupView | None, signature: SignatureName | None
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
        call_site=1 if stuck.call_site is not None else 0,
        label=0,
        peer=-1,
        tag=0,
        thread=0,
        flags=_NO_FLAGS,
    )
    name = stuck.operation.operation
    return OperationView(record, name, operation_id, group, signature, stuck.call_site, "", "", entered_ns)
