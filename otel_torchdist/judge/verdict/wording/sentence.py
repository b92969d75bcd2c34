"""Writes a verdict in plain English: a sentence with cause, duration and line, and a second sentence with details."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from otel_torchdist.judge.verdict.earlier_verdict import is_about_failure, names_departed
from otel_torchdist.judge.verdict.roll_call import Standing
from otel_torchdist.judge.verdict.verdict import Doubt, Verdict
from otel_torchdist.judge.verdict.wording.calls import (
    describe_divergence,
    describe_frame,
    describe_libraries,
    describe_message_lines,
    describe_operation,
    describe_values,
)
from otel_torchdist.judge.verdict.wording.causes import cause_of, is_gone
from otel_torchdist.judge.verdict.wording.ends import (
    cause_states_death,
    describe_circumstances,
    describe_deadline,
    describe_exit,
)
from otel_torchdist.judge.verdict.wording.launches import (
    describe_addresses,
    describe_file,
    describe_meeting,
    describe_stale_store,
    describe_twins,
    has_launch_clause,
)
from otel_torchdist.judge.verdict.wording.machine import describe_machine
from otel_torchdist.judge.verdict.wording.next_steps import next_step
from otel_torchdist.judge.verdict.wording.places import (
    describe_call,
    describe_checkpoint,
    describe_place,
    describe_waits_behind,
    lone_saver,
    shared_meeting,
    where_they_wait,
)
from otel_torchdist.judge.world.places import PlaceSource, RankPlace
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.names import INIT_PROCESS_GROUP, CallSiteName
from otel_torchdist.model.reports.finding import NEXT
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.text import have, name_ranks, readable, seconds

MAX_DESCRIBED: Final = 3
"""Maximum number of ranks whose line is stated. The incident's trace contains the other ranks."""


def sentence(verdict: Verdict, age_s: float, bound: str = "") -> str:
    """Describe a verdict and the next step; see `describe_verdict`."""
    return f"{describe_verdict(verdict, age_s, bound)}. {NEXT} {next_step(verdict)}"


def describe_verdict(verdict: Verdict, age_s: float, bound: str = "") -> str:
    """Describe which ranks hold an operation up, where they are, for how long, and how many ranks wait.

    The first sentence is short. A second sentence has the details.

    Args:
        verdict: The verdict with places; see `locate`.
        age_s: Seconds since the first rank began to wait.
        bound: `at least` or `up to` if the age is only bounded.
    """
    age = f"{bound} {seconds(age_s)}".lstrip()
    places = _places(verdict)
    cause = cause_of(verdict, age)
    lead, left_out = cause.text, ()
    if cause.short and len("; ".join([lead, *places[:1]])) > MAX_LENGTH:
        lead, left_out = cause.short, cause.rest
    details = [
        *left_out,
        *_difference(verdict, age),
        *_node(verdict),
        *describe_file(verdict),
        *_creation(verdict),
        *describe_addresses(verdict),
        *describe_twins(verdict),
        *describe_stale_store(verdict),
        *_endings(verdict),
        *describe_machine(verdict),
        *places[1:],
        *_coverage(verdict),
        *_deadline(verdict, verdict.since_ns + round(age_s * 1e9)),
    ]
    behind = describe_waits_behind(verdict)
    if behind:  # one sentence for the chain through all worlds
        return compose(["; ".join([lead, *places[:1], *behind])], details)
    return compose(
        [lead, *places[:1], *_waiting(verdict)],
        details,
        MAX_LENGTH_WITH_PLACE if places and not verdict.circle else MAX_LENGTH,
    )


def _node(verdict: Verdict) -> list[str]:
    """State that a whole node is at fault, which a list of ranks does not show."""
    return [f"they are all ranks of {readable(verdict.node)}"] if verdict.node else []


def _waiting(verdict: Verdict) -> list[str]:
    """Describe how many ranks wait, and which have left the operation."""
    has_all = verdict.kind is VerdictKind.UNMATCHED and verdict.circle
    is_circle = verdict.kind is VerdictKind.CIRCULAR or verdict.doubt is Doubt.CYCLE
    if is_circle or has_all or has_launch_clause(verdict):
        return []  # all wait, each in another operation, or the cause names the waiting ranks
    waiting = len(verdict.waiting)
    parts = [f"{waiting} of {verdict.members} ranks {'waits' if waiting == 1 else 'wait'}"] if waiting else []
    meeting = shared_meeting(verdict)
    if parts and meeting:
        parts = [f"{parts[0]} in stage {meeting} of the checkpoint"]
    elif parts:
        parts = [f"{parts[0]}{describe_meeting(verdict)}{where_they_wait(verdict)}"]
    out = verdict.roll.ranks(Standing.OUT)
    if out and verdict.kind.traits.is_of_transfer:
        parts.append(f"{name_ranks(out)} {have(out)} left it")
    return parts


def _difference(verdict: Verdict, age: str) -> list[str]:
    """Describe for how long mismatched calls have been blocked, and how else they differ."""
    mismatch = verdict.mismatch
    if mismatch is None or not describe_divergence(mismatch) or verdict.kind is not VerdictKind.MISMATCHED:
        return []  # all other causes include the age
    operation_id = describe_operation(mismatch.operation, verdict.group, mismatch.operation_id)
    blocked = f"this has blocked {operation_id} for {age}"
    return [blocked, *describe_values(mismatch), *describe_libraries(mismatch.divergence)]


def _creation(verdict: Verdict) -> list[str]:
    """Describe the line at which the waiting ranks create the group, and which the others skipped."""
    call_sites = [operation.call_site for _, operation in sorted(verdict.roll.waits.items())]
    frame = next((call_site for call_site in call_sites if call_site is not None), None)
    is_new_group = (
        verdict.operation_id.channel.kind is RecordKind.RENDEZVOUS and verdict.operation != INIT_PROCESS_GROUP
    )
    if not is_new_group or frame is None or verdict.circle:  # the circle includes all lines
        return []
    return [f"the group is created in {describe_frame(frame)}"]


def _endings(verdict: Verdict) -> list[str]:
    """Describe exceptions and clean exits, which explain more than a line of code."""
    parts: list[str] = []
    for rank in verdict.ranks[:MAX_DESCRIBED]:
        failure = verdict.failures.get(rank)
        standing = verdict.roll.standings.get(rank)
        if standing is Standing.DEAD and verdict.first is not None and verdict.first.is_silence:
            continue
        if standing is Standing.DEAD and not cause_states_death(verdict):
            parts.append(f"rank {rank} ended with {failure}" if failure else f"the process of rank {rank} is gone")
        elif standing is Standing.ENDED:
            is_stated = is_about_failure(verdict) or (verdict.kind is VerdictKind.ABSENT and names_departed(verdict))
            parts += [] if is_stated else [describe_exit(verdict, rank)]
        elif failure and not cause_states_death(verdict) and not _states_exception(verdict, rank):
            parts.append(f"rank {rank} raised {failure}")
    return [*parts, *describe_circumstances(verdict)]


def _states_exception(verdict: Verdict, rank: int) -> bool:
    return rank in verdict.places and verdict.places[rank].source is PlaceSource.EXCEPTION


def _places(verdict: Verdict) -> list[str]:
    """Describe where the named ranks are or, if none is named, the first waiting rank."""
    if verdict.kind is VerdictKind.SHARED_GROUP:
        return []  # the cause includes both lines
    if verdict.mismatch is not None and (
        describe_divergence(verdict.mismatch) or describe_message_lines(verdict.mismatch)
    ):
        return []  # the cause includes the lines
    named = verdict.ranks or verdict.waiting[:1]
    stated = {rank: link.call_site for link in verdict.circle for rank in (*link.ranks, *link.served_by)}
    located = [rank for rank in named[:MAX_DESCRIBED] if rank in verdict.places]
    located = [rank for rank in located if rank not in stated or _adds(verdict.places[rank], stated[rank])]
    alone = len(verdict.ranks) == 1
    clauses = [_place_of(verdict, rank, "it" if alone else f"rank {rank}") for rank in located]
    if verdict.ranks and lone_saver(verdict) is None:
        savers = [(rank, describe_checkpoint(verdict.places[rank])) for rank in located]
        verbs = {rank: "was" if is_gone(verdict, rank) else "is" for rank in located}
        texts = [f"{'it' if alone else f'rank {rank}'} {verbs[rank]} in {text}" for rank, text in savers if text]
        clauses = texts + clauses
    calls = [describe_call(verdict.places[rank], "it" if alone else f"rank {rank}") for rank in located]
    if verdict.kind is not VerdictKind.CIRCULAR:
        clauses = [*filter(None, calls), *clauses]
    return [clause for clause in clauses if clause]


def _place_of(verdict: Verdict, rank: int, subject: str) -> str:
    place, first = verdict.places[rank], verdict.first
    if first is not None and rank in first.deaths and first.deaths[rank].error:
        place = replace(place, message="")  # the cause quotes it
    clause = describe_place(place, subject)
    return clause.replace(" is in ", " was in ", 1) if is_gone(verdict, rank) else clause


def _adds(place: RankPlace, call_site: CallSiteName | None) -> bool:
    """Return whether a stack shows more than the line at which the operation was called."""
    return place.source.is_stack and place.frame != call_site


def _coverage(verdict: Verdict) -> list[str]:
    if verdict.reporting == verdict.members or has_launch_clause(verdict):
        return []
    unseen = sorted({*verdict.ranks} & {*verdict.roll.unseen} - {*verdict.launch.sizes})
    adds = unseen and verdict.kind is not VerdictKind.UNREACHABLE
    parts = [f"{name_ranks(unseen)} {have(unseen)} not been seen at all"] if adds else []
    return [*parts, f"{verdict.reporting} of {verdict.members} ranks report"]


def _deadline(verdict: Verdict, moment_ns: int) -> list[str]:
    return [describe_deadline(verdict.deadline, moment_ns)] if verdict.deadline is not None else []


# --- length -----------------------------------------------------------------------------------------------------------
# Keeps the first sentence short: long names are cut in the middle, and other clauses move to the second sentence.


MAX_LENGTH: Final = 200
"""Maximum length of the first sentence in characters: two lines of a terminal, or one page of a pager."""
MAX_LENGTH_WITH_PLACE: Final = 250
"""Maximum length if the second clause, which says where the rank is, would not fit otherwise."""
MAX_LENGTH_ALONE: Final = 400
"""Maximum length if the first clause alone is long, such as the operations of all ranks of a circle."""
_WIDE: Final = (48, 40, 32)
"""Maximum lengths of names, tried in this order before the sentence may grow."""
_NARROW: Final = (24, 18, 12)
"""The same for very long names. The remaining part still distinguishes two lines of a file."""
_FUNCTION: Final = re.compile(r" in \S+ at (?=\S+:\d+$)")
"""The function before the line at the end of a clause."""
_PLACE: Final = re.compile(r":\d+\W*$")
"""The line number at the end of `train.py:41`. Such names keep the first width of `_NARROW`."""


def compose(first: Sequence[str], more: Sequence[str], with_two: int = MAX_LENGTH_WITH_PLACE) -> str:
    """Join clauses into a short first sentence and a second sentence with the remaining clauses.

    Args:
        first: Clauses of the first sentence, the most important first. The first clause is never moved.
        more: Clauses of the second sentence.
        with_two: Maximum length of the first sentence if it consists of the first two clauses.
    """
    for count in range(len(first), 0, -1):
        clauses = [*first[:count]]
        lead = "; ".join(clauses)
        if count > 2 and len(lead) > MAX_LENGTH:  # without the function name, the clause may fit
            lead = "; ".join([*clauses[:-1], _FUNCTION.sub(" at ", clauses[-1])])
        lead = _shortened(lead, _NARROW if count == 1 else _NARROW[:1])
        if len(lead) <= (with_two if count == 2 else MAX_LENGTH) or count == 1:
            rest = "; ".join([*first[count:], *more])
            return f"{lead}. {rest[0].upper()}{rest[1:]}" if rest else lead
    return "; ".join(more)


def with_short_start(text: str) -> str:
    """Return the text of a finding with a short first sentence. Clauses that do not fit move to a second sentence."""
    return compose(text.split("; "), [], MAX_LENGTH)


def _shortened(text: str, narrow: Sequence[int]) -> str:
    """Cut the names in a text, the longest first, until it is short. Paths are not cut, so that users can copy them."""
    wide = [text, *(_with_names_of(text, width) for width in _WIDE)]
    cut = [_with_names_of(text, width) for width in narrow]
    tries = (
        (wide, MAX_LENGTH),
        (wide, MAX_LENGTH_WITH_PLACE),
        (cut, MAX_LENGTH_WITH_PLACE),
        ([*wide, *cut], MAX_LENGTH_ALONE),
    )
    return next((cut_text for texts, most in tries for cut_text in texts if len(cut_text) <= most), cut[-1])


def _with_names_of(text: str, width: int) -> str:
    return re.sub(
        rf"(?<![^\s(])[^\s()/][^\s()]{{{width},}}", lambda name: _cut(name[0], _width_for(name[0], width)), text
    )


def _width_for(name: str, width: int) -> int:
    return max(width, _NARROW[0]) if _PLACE.search(name) else width


def _cut(name: str, width: int) -> str:
    if len(name) <= width:
        return name
    kept = width - 1
    return f"{name[: kept // 2]}…{name[-(kept - kept // 2) :]}"
