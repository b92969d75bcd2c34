"""Symptoms of a rank's machine as at most one clause, beside a verdict or a finding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.naming import readable
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.model.symptoms import Symptom, SymptomKind, SymptomSource
from otel_torchdist.model.units import seconds

RECENT_NS: Final = 60_000_000_000
"""Maximum time in ns between a momentary symptom and the wait that it may explain."""
LASTING_NS: Final = 10_000_000_000
"""The same for a lasting symptom, which is observed every few seconds."""
MAX_DETAIL: Final = 64

_XIDS: Final = {
    13: "graphics engine exception",
    31: "memory page fault",
    48: "double-bit memory error",
    63: "memory row remapped",
    64: "memory row could not be remapped",
    74: "NVLink error",
    79: "it has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "its system processor does not answer",
    120: "its system processor has failed",
}
"""NVIDIA's documented meanings of the errors that end jobs most often, by Xid."""


def describe_machine(verdict: Verdict) -> list[str]:
    """Describe the symptom that may explain a verdict: on a named rank or, if none is named, on any member."""
    match = telling(verdict)
    if match is None:
        return []
    rank, symptom = match
    whose = "its" if verdict.ranks == (rank,) else f"rank {rank}'s"
    return [_clause(symptom, whose, *_reference(verdict, rank))]


def telling(verdict: Verdict) -> tuple[int, Symptom] | None:
    """Return the most telling recent symptom and its rank; None if there is none."""
    sources = verdict.kind.traits.symptoms
    ranks: Iterable[int] = verdict.ranks or sorted(verdict.symptoms)
    candidates = [
        (rank, symptom)
        for rank in ranks
        for symptom in verdict.symptoms.get(rank, ())
        if symptom.kind.source in sources and _is_recent(symptom, verdict.since_ns) and not _is_stated(symptom, verdict)
    ]
    return min(candidates, key=lambda candidate: (_ORDER.index(candidate[1].kind), candidate[0]), default=None)


def describe_slow(symptoms: Iterable[Symptom], now_ns: int) -> str:
    """Describe the symptom that may explain a slow rank, as the end of a sentence; '' if there is none."""
    recent = [
        (place, _ORDER.index(symptom.kind), symptom)
        for symptom in symptoms
        if (place := _place_if_slow(symptom.kind.source)) is not None and _is_recent(symptom, now_ns)
    ]
    if not recent:
        return ""
    _, _, first = min(recent, key=lambda symptom: symptom[:2])
    return f"; {_clause(first, 'its', 0, '')}"


def _place_if_slow(source: SymptomSource) -> int | None:
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


def _is_recent(symptom: Symptom, since_ns: int) -> bool:
    return symptom.at_ns >= since_ns - (LASTING_NS if _lasts(symptom.kind) else RECENT_NS)


def _lasts(kind: SymptomKind) -> bool:
    """Return whether a symptom lasts and is observed repeatedly, rather than occurring at one moment."""
    match kind:
        case SymptomKind.XID | SymptomKind.ECC | SymptomKind.LINK_DOWN:
            return False
        case (
            SymptomKind.GPU_LOST
            | SymptomKind.CGROUP_MEMORY
            | SymptomKind.NODE_MEMORY
            | SymptomKind.STORAGE
            | SymptomKind.THROTTLED
        ):
            return True


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
            meaning = _XIDS.get(round(symptom.value)) if abs(symptom.value) < 1e6 else None
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
