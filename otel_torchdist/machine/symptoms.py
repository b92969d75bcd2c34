"""What a machine shows that may explain a stall: evidence beside a verdict, never a verdict by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class MachineReading:
    """What was read of a machine at one moment.

    Attributes:
        host: Name of the node.
        gpus: UUID of each rank's GPU, by the nonce of its tape; '' if the rank has none, or it is not known.
        symptoms: What may explain a stall of any rank here.
        symptoms_of_cgroups: The same for single ranks, by nonce.
        symptoms_of_gpus: The same for the ranks on a GPU, by its UUID.
    """

    host: str
    gpus: Mapping[int, str] = field(default_factory=dict[int, str])
    symptoms: tuple[Symptom, ...] = ()
    symptoms_of_cgroups: Mapping[int, tuple[Symptom, ...]] = field(default_factory=dict[int, tuple[Symptom, ...]])
    symptoms_of_gpus: Mapping[str, tuple[Symptom, ...]] = field(default_factory=dict[str, tuple[Symptom, ...]])

    def symptoms_of(self, nonce: int) -> tuple[Symptom, ...]:
        """What may explain a stall of the rank whose tape has this nonce."""
        of_gpu = self.symptoms_of_gpus.get(self.gpus.get(nonce, ""), ())
        return (*of_gpu, *self.symptoms_of_cgroups.get(nonce, ()), *self.symptoms)


class SymptomLog:
    """Remembers the newest symptom of each kind, of one machine, cgroup or GPU."""

    def __init__(self) -> None:
        self._newest: dict[SymptomKind, Symptom] = {}

    def note(self, symptom: Symptom) -> None:
        """Remember a symptom in place of an earlier one of its kind."""
        self._newest[symptom.kind] = symptom

    def note_memory(self, kind: SymptomKind, share: float, now_ns: int) -> None:
        """Remember that memory is short, if everything waits for it for this share of the time."""
        if share >= MEMORY_IS_SHORT:
            self.note(Symptom(kind, now_ns, share))

    def shown(self, now_ns: int) -> tuple[Symptom, ...]:
        """Return what is still remembered."""
        self._newest = {kind: one for kind, one in self._newest.items() if now_ns - one.at_ns <= KEPT_NS}
        return tuple(self._newest.values())


class ErrorCounters:
    """Counters of errors in the kernel and in devices, which have counted since long before the first reading."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def grown(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return the counters that have grown since the last reading, and by how much.

        A counter that has fallen has begun anew: its driver was loaded again, or it was reset.

        Args:
            counts: All counters now; a counter that is missing is forgotten, for its device is gone.
        """
        growth: dict[str, int] = {}
        for name, count in counts.items():
            last = self._last.get(name, count)
            growth[name] = count - last if count >= last else count
        self._last = dict(counts)
        return {name: more for name, more in growth.items() if more}
