"""Symptoms of a rank's machine as at most one clause, beside a verdict or a finding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.rank_state.symptoms import XID_MEANINGS, Symptom, SymptomKind, SymptomSource
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.model.text import readable, seconds

MAX_DETAIL: Final = 64


def describe_machine(verdict: Verdict) -> list[str]:
    """Describe the symptom that may explain a verdict: on a named rank or, if none is named, on any member."""
    match = strongest_symptom(verdict)
    if match is None:
        return []
    rank, symptom = match
    whose = "its" if verdict.ranks == (rank,) else f"rank {rank}'s"
    return [_clause(symptom, whose, *_reference(verdict, rank))]


def strongest_symptom(verdict: Verdict) -> tuple[int, Symptom] | None:
    """Return the recent symptom that explains most, and its rank; None if there is none."""
    sources = verdict.kind.traits.symptoms
    ranks: Iterable[int] = verdict.ranks or sorted(verdict.symptoms)
    candidates = [
        (rank, symptom)
        for rank in ranks
        for symptom in verdict.symptoms.get(rank, ())
        if symptom.kind.source in sources and symptom.is_recent(verdict.since_ns) and not _is_stated(symptom, verdict)
    ]
    return min(candidates, key=lambda candidate: (_ORDER.index(candidate[1].kind), candidate[0]), default=None)


def describe_slow(symptoms: Iterable[Symptom], now_ns: int) -> str:
    """Describe the symptom that may explain a slow rank, as the end of a sentence; '' if there is none."""
    recent = [
        (priority, _ORDER.index(symptom.kind), symptom)
        for symptom in symptoms
        if (priority := _priority_if_slow(symptom.kind.source)) is not None and symptom.is_recent(now_ns)
    ]
    if not recent:
        return ""
    _, _, first = min(recent, key=lambda symptom: symptom[:2])
    return f"; {_clause(first, 'its', 0, '')}"


def _priority_if_slow(source: SymptomSource) -> int | None:
    """Return the priority of a source for explaining a slow rank, 0 the highest; None if it cannot explain one."""
    match source:
        case SymptomSource.GPU_CLOCKS:
            return 0
        case SymptomSource.MEMORY:
            return 1
        case SymptomSource.STORAGE:
            return 2
        case SymptomSource.GPU | SymptomSource.LINK:
            return None


def describe_slow_rank(world: WorldSnapshot, rank: int) -> str:
    """Describe the symptom that may explain a slow rank of a snapshot; see `describe_slow`."""
    view = world.ranks.get(rank)
    return describe_slow(view.symptoms, world.taken_ns) if view is not None else ""


_ORDER: Final = tuple(SymptomKind)


def _is_stated(symptom: Symptom, verdict: Verdict) -> bool:
    """Return whether the verdict already states an out-of-memory kill."""
    deaths = verdict.first.deaths.values() if verdict.first is not None else ()
    return symptom.kind.source is SymptomSource.MEMORY and any(death.oom for death in deaths)


def _reference(verdict: Verdict, rank: int) -> tuple[int, str]:
    """Return the moment to which the symptom's time is relative, and the event at that moment."""
    death = verdict.first.deaths.get(rank) if verdict.first is not None else None
    return (death.at_ns, "it ended") if death is not None else (verdict.since_ns, "the wait began")


def _clause(symptom: Symptom, whose: str, reference_ns: int, event: str) -> str:
    detail = readable(symptom.detail, MAX_DETAIL)
    match symptom.kind:
        case SymptomKind.GPU_LOST:
            return f"{whose} GPU is lost: the driver does not reach it"
        case SymptomKind.XID:
            meaning = XID_MEANINGS.get(symptom.xid)
            number = f"Xid {symptom.value:.0f}{f' ({meaning})' if meaning else ''}"
            return f"{whose} GPU reported {number} {_when(symptom, reference_ns, event)}"
        case SymptomKind.ECC:
            errors = "a memory error" if symptom.value == 1 else f"{symptom.value:.0f} memory errors"
            verb = "was" if symptom.value == 1 else "were"
            return f"{whose} GPU has had {errors} that {verb} not corrected, {_when(symptom, reference_ns, event)}"
        case SymptomKind.CGROUP_MEMORY:
            return f"{whose} cgroup was short of memory (PSI full {symptom.value:.0%})"
        case SymptomKind.NODE_MEMORY:
            return f"{whose} node was short of memory (PSI full {symptom.value:.0%})"
        case SymptomKind.LINK_DOWN:
            return f"{whose} node's link {detail} went down {_when(symptom, reference_ns, event)}"
        case SymptomKind.STORAGE:
            return f"{whose} node waited for storage (PSI full {symptom.value:.0%})"
        case SymptomKind.THROTTLED:
            return f"{whose} GPU's clocks are held down ({detail})"


def _when(symptom: Symptom, reference_ns: int, event: str) -> str:
    lead_s = (reference_ns - symptom.at_ns) / 1e9
    return f"{seconds(abs(lead_s))} {'before' if lead_s >= 0 else 'after'} {event}"
