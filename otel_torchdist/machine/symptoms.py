"""What a machine shows that may explain a stall: evidence beside a verdict, never a verdict by itself."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, Protocol

MEMORY_IS_SHORT: Final = 0.1
"""Share of time in which everything waits for memory: the node is thrashing."""
STORAGE_IS_SLOW: Final = 0.5
"""Share of time in which everything waits for storage. Loading data is hardly ever all that goes on."""
KEPT_NS: Final = 300_000_000_000
"""How long a symptom is remembered after it was last seen."""


class SymptomKind(enum.Enum):
    """The kinds, the most telling first."""

    GPU_LOST = "gpu_lost"
    """The driver has lost the GPU."""
    XID = "xid"
    """The driver has reported an error of the GPU; the value is its number."""
    ECC = "ecc"
    """Memory errors of the GPU that were not corrected; the value is their number."""
    CGROUP_MEMORY = "cgroup_memory"
    """The rank's cgroup is short of memory; the value is the share of time lost to that."""
    NODE_MEMORY = "node_memory"
    """The node is short of memory; likewise."""
    LINK_DOWN = "link_down"
    """An InfiniBand port has lost its link; the detail is its name."""
    STORAGE = "storage"
    """The node waits for storage; the value is the share of time lost to that."""
    THROTTLED = "throttled"
    """The GPU's clocks are held down; the detail says why."""


@dataclass(frozen=True, slots=True)
class Symptom:
    """One symptom.

    Attributes:
        kind: What it is.
        at_ns: When it was last seen, on the monotonic clock.
        value: Its number, see the kind.
        detail: A word or two, see the kind.
    """

    kind: SymptomKind
    at_ns: int
    value: float = 0.0
    detail: str = ""


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
