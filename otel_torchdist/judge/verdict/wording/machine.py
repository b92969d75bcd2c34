"""What the machine of a rank has shown, as at most one clause beside a verdict or a finding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.naming import readable
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.model.symptoms import Symptom, SymptomKind, SymptomSource
from otel_torchdist.model.units import seconds

RECENT_NS: Final = 60_000_000_000
"""How long before a wait began something must have happened at the latest to be mentioned."""
LASTING_NS: Final = 10_000_000_000
"""The same for what lasts while it matters, and is seen every few seconds."""
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
"""What NVIDIA's documentation says of the errors that end a job most often."""


def describe_machine(verdict: Verdict) -> list[str]:
    """What may explain a verdict: of a rank that it names or, if it names none, of any member."""
    found = telling(verdict)
    if found is None:
        return []
    rank, symptom = found
    whose = "its" if verdict.ranks == (rank,) else f"rank {rank}'s"
    return [_clause(symptom, whose, *_reference(verdict, rank))]


def telling(verdict: Verdict) -> tuple[int, Symptom] | None:
    """The most telling recent symptom, and the rank that has it; None if there is none."""
    sources = verdict.kind.traits.symptoms
    ranks: Iterable[int] = verdict.ranks or sorted(verdict.symptoms)
    found = [
        (rank, symptom)
        for rank in ranks
        for symptom in verdict.symptoms.get(rank, ())
        if symptom.kind.source in sources and _is_recent(symptom, verdict.since_ns) and not _is_said(symptom, verdict)
    ]
    return min(found, key=lambda one: (_ORDER.index(one[1].kind), one[0]), default=None)


def describe_slow(symptoms: Iterable[Symptom], now_ns: int) -> str:
    """What may explain that a rank is slow, as the end of a sentence; '' for nothing."""
    recent = [
        (place, _ORDER.index(one.kind), one)
        for one in symptoms
        if (place := _place_if_slow(one.kind.source)) is not None and _is_recent(one, now_ns)
    ]
    if not recent:
        return ""
    _, _, first = min(recent, key=lambda one: one[:2])
    return f"; {_clause(first, 'its', 0, '')}"


def _place_if_slow(source: SymptomSource) -> int | None:
    """Return the place of a source among those that can explain a slow rank, 0 the most telling; None for others."""
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
    """Describe what may explain that a rank of a snapshot is slow; see `describe_slow`."""
    view = world.ranks.get(rank)
    return describe_slow(view.symptoms, world.taken_ns) if view is not None else ""


_ORDER: Final = tuple(SymptomKind)


def _is_recent(symptom: Symptom, since_ns: int) -> bool:
    return symptom.at_ns >= since_ns - (LASTING_NS if _lasts(symptom.kind) else RECENT_NS)


def _lasts(kind: SymptomKind) -> bool:
    """Return whether a symptom is seen again and again while it matters, and does not happen at one moment."""
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


def _is_said(symptom: Symptom, verdict: Verdict) -> bool:
    """Whether the verdict says it already: the kernel has killed for lack of memory."""
    deaths = verdict.first.deaths.values() if verdict.first is not None else ()
    return symptom.kind.source is SymptomSource.MEMORY and any(death.oom for death in deaths)


def _reference(verdict: Verdict, rank: int) -> tuple[int, str]:
    """The moment that matters, and what happened then."""
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
