"""What a machine shows that may explain a stall: evidence beside a verdict, never a verdict by itself."""

from __future__ import annotations

from typing import Final, Protocol

from otel_torchdist.model.symptoms import Symptom, SymptomKind

MEMORY_IS_SHORT: Final = 0.1
"""Share of time in which everything waits for memory: the node is thrashing."""
STORAGE_IS_SLOW: Final = 0.5
"""Share of time in which everything waits for storage. Loading data is hardly ever all that goes on."""
KEPT_NS: Final = 300_000_000_000
"""How long a symptom is remembered after it was last seen."""


class RankSymptoms(Protocol):
    """Knows what a machine shows."""

    def symptoms_of(self, nonce: int) -> tuple[Symptom, ...]:
        """What may explain a stall of the rank whose tape has this nonce."""
        ...


class SymptomLog:
    """Remembers the newest symptom of each kind, of one machine, cgroup or GPU."""

    def __init__(self) -> None:
        self._newest: dict[SymptomKind, Symptom] = {}

    def note(self, symptom: Symptom) -> None:
        """Remember a symptom in place of an earlier one of its kind."""
        self._newest[symptom.kind] = symptom

    def shown(self, now_ns: int) -> tuple[Symptom, ...]:
        """Return what is still remembered."""
        self._newest = {kind: one for kind, one in self._newest.items() if now_ns - one.at_ns <= KEPT_NS}
        return tuple(self._newest.values())
