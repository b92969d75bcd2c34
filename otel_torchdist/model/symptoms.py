"""Symptoms: what a machine shows that may explain a stall. They are evidence beside a verdict, never a verdict."""

from __future__ import annotations

import enum
from dataclasses import dataclass


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

    @property
    def source(self) -> SymptomSource:
        """The part of the machine that shows it."""
        match self:
            case SymptomKind.GPU_LOST | SymptomKind.XID | SymptomKind.ECC:
                return SymptomSource.GPU
            case SymptomKind.THROTTLED:
                return SymptomSource.GPU_CLOCKS
            case SymptomKind.CGROUP_MEMORY | SymptomKind.NODE_MEMORY:
                return SymptomSource.MEMORY
            case SymptomKind.STORAGE:
                return SymptomSource.STORAGE
            case SymptomKind.LINK_DOWN:
                return SymptomSource.LINK


class SymptomSource(enum.Enum):
    """The part of a machine that shows a symptom."""

    GPU = "gpu"
    """A GPU that is lost or has errors."""
    GPU_CLOCKS = "gpu clocks"
    MEMORY = "memory"
    STORAGE = "storage"
    LINK = "link"


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
