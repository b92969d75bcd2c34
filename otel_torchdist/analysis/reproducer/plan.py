"""From a verdict and the recorded calls to a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from otel_torchdist.analysis.reproducer.cast import Cast, Involved, cast_for, involved_in
from otel_torchdist.analysis.reproducer.endings import end_of
from otel_torchdist.analysis.reproducer.facts import ScriptOrigin, facts_about, remarks_on
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
from otel_torchdist.analysis.reproducer.steps import StepWriter, groups_for, number_of, whole
from otel_torchdist.analysis.reproducer.tails import Event, tails_of
from otel_torchdist.judge.verdict.roll_call import Standing
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.calls import Channel, GroupView, OperationId
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.model.verdict_kinds import VerdictKind

MOST_RANKS: Final = 1_024
"""More processes than this on one machine are of no use to anybody."""


def plan(verdict: Verdict, world: WorldSnapshot, histories: Sequence[RankHistory], origin: ScriptOrigin) -> Script:
    """Plan a script that hangs as a job did.

    Args:
        verdict: The verdict on the job, with places.
        world: The ranks as the verdict saw them.
        histories: Their recorded calls.
        origin: Where these come from.

    Raises:
        NotReproducibleError: No script can show this verdict.
    """
    by_rank = {history.rank: _as_judged(history, world) for history in histories}
    involved = involved_in(verdict, by_rank)
    tails = tails_of([by_rank[rank] for rank in involved.ranks if rank in by_rank], involved.focus)
    cut = {rank: _cut(verdict, rank, tail) for rank, tail in tails.of_rank.items()}
    cast = cast_for(involved, cut)
    if len(cast.kept) > MOST_RANKS:
        raise NotReproducibleError(f"it takes {len(cast.kept)} ranks, more than {MOST_RANKS} processes on one machine")
    kept = {rank: cut.get(rank, ()) for rank in cast.kept}
    views = _groups_in(verdict, kept)
    groups = groups_for(views, cast, origin.world_size)
    writer = StepWriter(kept, cast, groups, _earliest(kept))
    before = _before(involved, groups, cast)
    steps = tuple((*before, *_steps(verdict, rank, kept[rank], writer)) for rank in cast.kept)
    where = verdict.operation_id if verdict.mismatch is None else verdict.mismatch.operation_id
    sequence = _position(where, tails.first, groups, cast)
    return Script(
        title=f"It hangs as a job of {origin.world_size or len(histories)} ranks did: `{verdict.kind.value}`.",
        facts=tuple(facts_about(involved, tails, cast, writer.substituted, origin, sequence)),
        steps=steps,
        named=tuple(place for place, rank in enumerate(cast.kept) if rank in verdict.ranks),
        stand_for=cast.stand_for,
        outlives_errors=verdict.kind is VerdictKind.MISMATCHED,
        sequence=sequence,
    )


def _as_judged(history: RankHistory, world: WorldSnapshot) -> RankHistory:
    """A history in which open calls are as the verdict saw them: a dump alone does not show which of them waits."""
    view = world.ranks.get(history.rank)
    if view is None:
        return history
    judged = {one.operation_id: one for one in view.open}
    operations = (judged.get(one.operation_id, one) if one.record.is_open else one for one in history.operations)
    return replace(history, operations=tuple(operations))


def _cut(verdict: Verdict, rank: int, tail: Sequence[Event]) -> tuple[Event, ...]:
    """Leave out what a rank that does not come has done about the operation since: failed in it, or been killed."""
    if rank not in verdict.ranks or not verdict.kind.traits.stays_away:
        return tuple(tail)
    count = next(
        (place for place, event in enumerate(tail) if event.operation.operation_id == verdict.operation_id), len(tail)
    )
    return tuple(tail[:count])


def _groups_in(verdict: Verdict, tails: Mapping[int, Sequence[Event]]) -> list[GroupView]:
    found = [event.operation.group for tail in tails.values() for event in tail]
    return [group for group in (verdict.group, *found) if group is not None]


def _before(involved: Involved, groups: Mapping[str, ScriptGroup], cast: Cast) -> list[Step]:
    """The groups that all ranks have created before: all but those whose creation is what hangs."""
    in_question = {channel.group for channel in involved.focus if channel.kind is RecordKind.RENDEZVOUS}
    created = {group.number: group for key, group in groups.items() if key not in in_question}
    asked = {groups[key].number for key in in_question if key in groups}
    if DEFAULT_GROUP not in asked:
        created = {DEFAULT_GROUP: whole(cast), **created}
    return [Create(group) for group in created.values()]


def _earliest(tails: Mapping[int, Sequence[Event]]) -> int | None:
    """The lowest number that torch has given to a group whose creation is in question; None if it has given none."""
    operations = [event.operation for tail in tails.values() for event in tail]
    created = [one.group for one in operations if one.operation_id.channel.kind is RecordKind.RENDEZVOUS]
    numbers = [number_of(group) for group in created if group is not None]
    return min((number for number in numbers if number is not None), default=None)


def _position(where: OperationId, first: Mapping[Channel, int], groups: Mapping[str, ScriptGroup], cast: Cast) -> int:
    """Where an operation of the job is in the script: creations count the groups of the same ranks."""
    if where.channel.kind is RecordKind.OPERATION:
        return where.sequence - first[where.channel] + 1
    own = groups[where.channel.group]
    created = {DEFAULT_GROUP: whole(cast), **{group.number: group for group in groups.values()}}
    return sum(group.ranks == own.ranks for number, group in created.items() if number <= own.number)


def _steps(verdict: Verdict, rank: int, tail: Sequence[Event], writer: StepWriter) -> list[Step]:
    is_named = rank in verdict.ranks
    steps, hangs = writer.steps(rank, tail, waits=not (is_named and verdict.kind.traits.stays_away))
    if hangs:
        return steps
    remarks = tuple(remarks_on(verdict, rank))
    if is_named and verdict.kind is not VerdictKind.DEAD and verdict.roll.standings.get(rank) is Standing.ENDED:
        return [*steps, End(Ending.EXITS, remarks=remarks)]
    return [*steps, end_of(verdict, rank, remarks)]
