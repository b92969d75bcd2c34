"""Keeps a verdict final: how a hung job ends does not change which ranks held it up."""

from __future__ import annotations

from otel_torchdist.verdict.first_death import first_death
from otel_torchdist.verdict.model import Outcome, Verdict, VerdictKind
from otel_torchdist.world.model import WorldSnapshot


def is_being_ended(world: WorldSnapshot, verdict: Verdict) -> bool:
    """Whether ranks other than those that a verdict names were the first to die.

    Then a launcher, a scheduler or a person is ending a hung job. If the ranks that it names are the first to die, and
    by themselves, that is news.
    """
    if verdict.kind is VerdictKind.DEAD:
        return False
    first = first_death([world.ranks[rank] for rank in verdict.roll.standings if rank in world.ranks])
    if first is None:
        return False
    all_wait = verdict.kind is VerdictKind.CIRCULAR
    return first.together or all_wait or not {*first.ranks} <= {*verdict.ranks}


def outcome_of(world: WorldSnapshot, verdict: Verdict) -> Outcome:
    """What became of an operation in which no rank waits any more."""
    operation_id = verdict.operation_id
    waiters = [world.ranks[rank] for rank in verdict.roll.waits if rank in world.ranks]
    progress = [view.progress[operation_id.channel] for view in waiters if operation_id.channel in view.progress]
    if any(reached.failed == operation_id.sequence for reached in progress):
        return Outcome.FAILED
    if any(reached.completed >= operation_id.sequence for reached in progress):
        return Outcome.COMPLETED
    if not any(view.alive for view in waiters):
        return Outcome.RANKS_ENDED
    return Outcome.OUT_OF_SIGHT
