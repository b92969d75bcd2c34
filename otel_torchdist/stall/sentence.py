"""A verdict as one plain English sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from otel_torchdist.stall.events import Outcome
from otel_torchdist.stall.places import Place, Source
from otel_torchdist.stall.roll_call import Standing
from otel_torchdist.stall.verdict import Doubt, Verdict, VerdictKind
from otel_torchdist.stall.world import ANYBODY, GroupView, Site
from otel_torchdist.tape.layout import RecordKind
from otel_torchdist.tape.records import CallSiteName
from otel_torchdist.telemetry.rank_ranges import compress_ranks

MAX_PLACES: Final = 3
"""Ranks whose place is told; the others have theirs in the incident's trace."""


def sentence(verdict: Verdict, age_s: float) -> str:
    """Say which ranks hold an operation up, for how long, who waits, and where those ranks are.

    Args:
        verdict: With places, see `locate`.
        age_s: Seconds since the first rank began to wait.
    """
    cause = _CAUSES[verdict.kind](verdict, f"{age_s:.1f} s")
    parts = [cause, *_crowd(verdict), *_endings(verdict), *_places(verdict), *_coverage(verdict)]
    return "; ".join(parts)


def describe_site(operation: str, group: GroupView | None, site: Site) -> str:
    """An operation as people name it: `all_reduce (sequence 118, default_pg)`."""
    lane = site.lane
    details: list[str] = []
    if lane.is_point_to_point:
        source = "any rank" if lane.source == ANYBODY else f"rank {lane.source}"
        details.append(f"from {source} to rank {lane.destination}")
        details.append(f"tag {lane.tag}")
    if lane.kind is not RecordKind.RENDEZVOUS:
        details.append(f"sequence {site.sequence}")
    details.append(group.label if group is not None else "unknown group")
    return f"{operation} ({', '.join(details)})"


def describe_place(place: Place, subject: str) -> str:
    """Where `subject` ("rank 2", "it") is, as a clause; '' when nothing is known."""
    line = "" if place.frame is None else describe_frame(place.frame)
    clauses = {
        Source.STACK: f"{subject} is in {line}" if line else "",
        Source.SIGNAL: f"{subject} is in {line} (seen by a signal while the GIL was held)" if line else "",
        Source.OPEN_OPERATION: f"{subject} is in {place.operation}" + (f", called in {line}" if line else ""),
        Source.LAST_OPERATION: f"{subject} was last in {place.operation}" + (f", called in {line}" if line else ""),
        Source.NOTHING: "",
    }
    clause = clauses[place.source]
    if place.frozen_for_ns is None:
        return clause
    frozen = f"its Python threads have not run for {place.frozen_for_ns / 1e9:.1f} s"
    return f"{clause}, and {frozen}" if clause else f"{subject} does not answer: {frozen}"


def describe_frame(frame: CallSiteName) -> str:
    """`load_batch at train.py:57`."""
    return f"{frame.function} at {PurePath(frame.file).name}:{frame.line}"


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 2`, or `ranks 2-3,7`."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {compress_ranks(ranks)}"


def _absent(verdict: Verdict, age: str) -> str:
    ranks, site = verdict.ranks, _site(verdict)
    named = name_ranks(ranks)
    verb = "has" if len(ranks) == 1 else "have"
    if verdict.site.lane.is_point_to_point:
        side = "send" if ranks == (verdict.site.lane.source,) else "recv"
        site = describe_site(side, verdict.group, verdict.site)
    return f"{named} {verb} not entered {site} for {age}"


def _dead(verdict: Verdict, age: str) -> str:
    verb = "is" if len(verdict.ranks) == 1 else "are"
    return f"{name_ranks(verdict.ranks)} {verb} dead, and {_site(verdict)} has waited for {age}"


def _device(verdict: Verdict, age: str) -> str:
    named, site = name_ranks(verdict.ranks), _site(verdict)
    if len(verdict.ranks) == 1:
        return f"{named} has enqueued {site}, but its device has not come to it for {age}"
    return f"{named} have enqueued {site}, but their devices have not come to it for {age}"


def _transport(verdict: Verdict, age: str) -> str:
    everybody = "both ranks" if verdict.members == 2 else f"all {verdict.members} ranks"
    return f"{everybody} have entered {_site(verdict)} and it is not over after {age}"


def _unknown(verdict: Verdict, age: str) -> str:
    if verdict.doubt is Doubt.CYCLE:
        return f"{name_ranks(verdict.ranks)} wait for each other, among others in {_site(verdict)}, for {age}"
    cause = f"{_site(verdict)} is not over after {age}"
    if verdict.doubt is Doubt.SILENT:
        return f"{cause}, and all ranks that report have entered"
    return f"{cause}, and who is missing is not known: {verdict.doubt.value}" if verdict.doubt else cause


_CAUSES: Final = {
    VerdictKind.ABSENT: _absent,
    VerdictKind.DEAD: _dead,
    VerdictKind.DEVICE: _device,
    VerdictKind.TRANSPORT: _transport,
    VerdictKind.UNKNOWN: _unknown,
}


def _site(verdict: Verdict) -> str:
    return describe_site(verdict.operation, verdict.group, verdict.site)


def _crowd(verdict: Verdict) -> list[str]:
    """How many wait, and whether some came out."""
    waiting = len(verdict.waiting)
    parts = [f"{waiting} of {verdict.members} ranks {'waits' if waiting == 1 else 'wait'}"] if waiting else []
    out = verdict.roll.ranks(Standing.OUT)
    if out and verdict.kind is VerdictKind.TRANSPORT:
        parts.append(f"{name_ranks(out)} came out")
    return parts


def _endings(verdict: Verdict) -> list[str]:
    """Exceptions and orderly ends, which explain more than a place in the code."""
    parts: list[str] = []
    for rank in verdict.ranks[:MAX_PLACES]:
        failure = verdict.failures.get(rank)
        standing = verdict.roll.standings.get(rank)
        if standing is Standing.DEAD:
            parts.append(f"rank {rank} ended with {failure}" if failure else f"the process of rank {rank} is gone")
        elif standing is Standing.ENDED:
            parts.append(f"rank {rank} has ended in good order")
        elif failure:
            parts.append(f"rank {rank} got {failure}")
    return parts


def _places(verdict: Verdict) -> list[str]:
    """Where those are that the verdict names; where the first is that waits, when it names nobody."""
    named = verdict.ranks or verdict.waiting[:1]
    told = [rank for rank in named[:MAX_PLACES] if rank in verdict.places]
    alone = len(verdict.ranks) == 1
    clauses = [describe_place(verdict.places[rank], "it" if alone else f"rank {rank}") for rank in told]
    return [clause for clause in clauses if clause]


def _coverage(verdict: Verdict) -> list[str]:
    if verdict.reporting == verdict.members:
        return []
    return [f"{verdict.reporting} of {verdict.members} ranks report"]


def resolution(verdict: Verdict, outcome: Outcome, length_ns: int) -> str:
    """Say how a stalled operation ended, and after how long."""
    site, length = _site(verdict), f"{length_ns / 1e9:.1f} s"
    endings = {
        Outcome.COMPLETED: f"{site} was completed after {length}",
        Outcome.FAILED: f"{site} failed after {length}",
        Outcome.RANKS_ENDED: f"all ranks that waited in {site} have ended, {length} after it began",
        Outcome.OUT_OF_SIGHT: f"{site} is out of sight after {length}: its tapes are gone or belong to another run now",
    }
    return endings[outcome]
