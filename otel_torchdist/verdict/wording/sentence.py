"""A verdict as one plain English sentence."""

from __future__ import annotations

from typing import Final

from otel_torchdist.naming import have, name_ranks
from otel_torchdist.tape.layout import RecordKind
from otel_torchdist.verdict.creations import DEFAULT_GROUP
from otel_torchdist.verdict.model import Verdict, VerdictKind
from otel_torchdist.verdict.roll_call import Standing
from otel_torchdist.verdict.wording.causes import cause_of
from otel_torchdist.verdict.wording.fates import cause_states_death, describe_circumstances
from otel_torchdist.verdict.wording.phrases import describe_frame, describe_place

MAX_PLACES: Final = 3
"""Ranks whose place is stated; those of the others are in the incident's trace."""


def sentence(verdict: Verdict, age_s: float) -> str:
    """Describe which ranks hold an operation up and where they are, for how long, and how many wait.

    Args:
        verdict: The verdict with places; see `locate`.
        age_s: Seconds since the first rank began to wait.
    """
    cause = cause_of(verdict, f"{age_s:.1f} s")
    clauses = [*_crowd(verdict), *_creation(verdict), *_endings(verdict), *_places(verdict), *_coverage(verdict)]
    return "; ".join([cause, *clauses])


def _crowd(verdict: Verdict) -> list[str]:
    """How many ranks wait, and whether some have left the operation."""
    waiting = len(verdict.waiting)
    parts = [f"{waiting} of {verdict.members} ranks {'waits' if waiting == 1 else 'wait'}"] if waiting else []
    out = verdict.roll.ranks(Standing.OUT)
    if out and verdict.kind is VerdictKind.TRANSPORT:
        parts.append(f"{name_ranks(out)} {have(out)} left it")
    return parts


def _creation(verdict: Verdict) -> list[str]:
    """Where the ranks that have come create the group: that is the line that the others have skipped."""
    operation_ids = [operation.call_site for _, operation in sorted(verdict.roll.waits.items())]
    frame = next((operation_id for operation_id in operation_ids if operation_id is not None), None)
    is_new_group = verdict.operation_id.channel.kind is RecordKind.RENDEZVOUS and verdict.operation != DEFAULT_GROUP
    return [f"the group is created in {describe_frame(frame)}"] if is_new_group and frame is not None else []


def _endings(verdict: Verdict) -> list[str]:
    """Exceptions and clean exits, which explain more than a place in the code."""
    parts: list[str] = []
    for rank in verdict.ranks[:MAX_PLACES]:
        failure = verdict.failures.get(rank)
        standing = verdict.roll.standings.get(rank)
        if standing is Standing.DEAD and not cause_states_death(verdict):
            parts.append(f"rank {rank} ended with {failure}" if failure else f"the process of rank {rank} is gone")
        elif standing is Standing.ENDED:
            parts.append(f"rank {rank} has exited cleanly")
        elif failure and not cause_states_death(verdict):
            parts.append(f"rank {rank} raised {failure}")
    return [*parts, *describe_circumstances(verdict)]


def _places(verdict: Verdict) -> list[str]:
    """Where the ranks are that the verdict names or, if it names none, where the first waiting rank is."""
    named = verdict.ranks or verdict.waiting[:1]
    located = [rank for rank in named[:MAX_PLACES] if rank in verdict.places]
    alone = len(verdict.ranks) == 1
    clauses = [describe_place(verdict.places[rank], "it" if alone else f"rank {rank}") for rank in located]
    if verdict.kind is VerdictKind.DEAD:
        clauses = [clause.replace(" is in ", " was in ", 1) for clause in clauses]
    return [clause for clause in clauses if clause]


def _coverage(verdict: Verdict) -> list[str]:
    if verdict.reporting == verdict.members:
        return []
    unseen = sorted({*verdict.ranks} & {*verdict.roll.unseen})
    adds = unseen and verdict.kind is not VerdictKind.UNREACHABLE
    parts = [f"{name_ranks(unseen)} {have(unseen)} not been seen at all"] if adds else []
    return [*parts, f"{verdict.reporting} of {verdict.members} ranks report"]
