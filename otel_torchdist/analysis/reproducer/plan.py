"""Plans a script from a verdict and the recorded calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from otel_torchdist.analysis.reproducer.endings import end_of
from otel_torchdist.analysis.reproducer.facts import ScriptOrigin, facts_about, remarks_on
from otel_torchdist.analysis.reproducer.rank_mapping import RankMapping, VerdictScope, choose_ranks, scope_of
from otel_torchdist.analysis.reproducer.script import (
    DEFAULT_GROUP,
    Create,
    End,
    Ending,
    NotReproducibleError,
    Script,
    ScriptGroup,
    Step,
)
from otel_torchdist.analysis.reproducer.steps import StepWriter, default_group, groups_for, number_of
from otel_torchdist.analysis.reproducer.tails import Event, tails_of
from otel_torchdist.judge.verdict.roll_call import Standing
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.calls import Channel, GroupView, OperationId
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import WorldSnapshot

MAX_RANKS: Final = 1_024
"""Upper bound on the script's ranks, which all run on one machine."""


def plan(verdict: Verdict, world: WorldSnapshot, histories: Sequence[RankHistory], origin: ScriptOrigin) -> Script:
    """Plan a script that hangs as a job did.

    Args:
        verdict: The verdict on the job, with the ranks' positions in the code.
        world: The snapshot that the verdict is based on.
        histories: The recorded calls of the ranks.
        origin: The origin of the verdict.

    Raises:
        NotReproducibleError: No script can reproduce this verdict.
    """
    by_rank = {history.rank: _as_judged(history, world) for history in histories}
    scope = scope_of(verdict, by_rank)
    tails = tails_of([by_rank[rank] for rank in scope.ranks if rank in by_rank], scope.hangs_at)
    cut = {rank: _cut(verdict, rank, tail) for rank, tail in tails.of_rank.items()}
    mapping = choose_ranks(scope, cut)
    if len(mapping.kept) > MAX_RANKS:
        raise NotReproducibleError(f"it needs {len(mapping.kept)} ranks, and one machine can run {MAX_RANKS}")
    kept = {rank: cut.get(rank, ()) for rank in mapping.kept}
    views = _groups_in(verdict, kept)
    groups = groups_for(views, mapping, origin.world_size)
    writer = StepWriter(kept, mapping, groups, _earliest(kept))
    creations = _creations(scope, groups, mapping)
    steps = tuple((*creations, *_steps(verdict, rank, kept[rank], writer)) for rank in mapping.kept)
    stalled = verdict.operation_id if verdict.mismatch is None else verdict.mismatch.operation_id
    sequence = _position(stalled, tails.first, groups, mapping)
    return Script(
        title=f"This script hangs as a job of {origin.world_size or len(histories)} ranks did: `{verdict.kind.value}`.",
        facts=tuple(facts_about(scope, tails, mapping, writer.substitutions, origin, sequence)),
        steps=steps,
        named=tuple(place for place, rank in enumerate(mapping.kept) if rank in verdict.ranks),
        stand_for=mapping.stand_for,
        outlives_errors=verdict.kind is VerdictKind.MISMATCHED,
        sequence=sequence,
    )


def _as_judged(history: RankHistory, world: WorldSnapshot) -> RankHistory:
    """Replace open calls by their state in the snapshot: a dump alone does not show which of them waits."""
    view = world.ranks.get(history.rank)
    if view is None:
        return history
    judged = {call.operation_id: call for call in view.open}
    operations = (judged.get(call.operation_id, call) if call.record.is_open else call for call in history.operations)
    return replace(history, operations=tuple(operations))


def _cut(verdict: Verdict, rank: int, tail: Sequence[Event]) -> tuple[Event, ...]:
    """Drop an absent rank's calls from the stalled operation on: it may have arrived after the verdict, and failed."""
    if rank not in verdict.ranks or not verdict.kind.traits.stays_away:
        return tuple(tail)
    count = next(
        (place for place, event in enumerate(tail) if event.operation.operation_id == verdict.operation_id), len(tail)
    )
    return tuple(tail[:count])


def _groups_in(verdict: Verdict, tails: Mapping[int, Sequence[Event]]) -> list[GroupView]:
    used = [event.operation.group for tail in tails.values() for event in tail]
    return [group for group in (verdict.group, *used) if group is not None]


def _creations(scope: VerdictScope, groups: Mapping[str, ScriptGroup], mapping: RankMapping) -> list[Step]:
    """Return the steps that create all groups before the hang, except groups whose creation hangs."""
    hanging = {channel.group for channel in scope.hangs_at if channel.kind is RecordKind.RENDEZVOUS}
    created = {group.number: group for key, group in groups.items() if key not in hanging}
    hanging_numbers = {groups[key].number for key in hanging if key in groups}
    if DEFAULT_GROUP not in hanging_numbers:
        created = {DEFAULT_GROUP: default_group(mapping), **created}
    return [Create(group) for group in created.values()]


def _earliest(tails: Mapping[int, Sequence[Event]]) -> int | None:
    """Return the lowest number that torch gave to a group created in the tails; None if torch gave no numbers."""
    operations = [event.operation for tail in tails.values() for event in tail]
    created = [call.group for call in operations if call.operation_id.channel.kind is RecordKind.RENDEZVOUS]
    numbers = [number_of(group) for group in created if group is not None]
    return min((number for number in numbers if number is not None), default=None)


def _position(
    stalled: OperationId, first: Mapping[Channel, int], groups: Mapping[str, ScriptGroup], mapping: RankMapping
) -> int:
    """Return the script's sequence of an operation of the job. Creations are counted among groups of the same ranks."""
    if stalled.channel.kind is RecordKind.OPERATION:
        return stalled.sequence - first[stalled.channel] + 1
    hanging = groups[stalled.channel.group]
    created = {DEFAULT_GROUP: default_group(mapping), **{group.number: group for group in groups.values()}}
    return sum(group.ranks == hanging.ranks for number, group in created.items() if number <= hanging.number)


def _steps(verdict: Verdict, rank: int, tail: Sequence[Event], writer: StepWriter) -> list[Step]:
    is_named = rank in verdict.ranks
    steps, hangs = writer.steps(rank, tail, waits=not (is_named and verdict.kind.traits.stays_away))
    if hangs:
        return steps
    remarks = tuple(remarks_on(verdict, rank))
    if is_named and verdict.kind is not VerdictKind.DEAD and verdict.roll.standings.get(rank) is Standing.ENDED:
        return [*steps, End(Ending.EXITS, remarks=remarks)]
    return [*steps, end_of(verdict, rank, remarks)]
