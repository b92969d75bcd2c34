"""Symptoms of a machine that may explain a stall. A symptom supports a verdict and never is one."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class SymptomKind(enum.Enum):
    """The kinds of symptoms, strongest evidence first."""

    GPU_LOST = "gpu_lost"
    """The driver lost the GPU."""
    XID = "xid"
    """The driver reported a GPU error; the value is the Xid."""
    ECC = "ecc"
    """Uncorrected memory errors of the GPU; the value is their count."""
    CGROUP_MEMORY = "cgroup_memory"
    """Memory pressure in the rank's cgroup; the value is the share of time lost to it."""
    NODE_MEMORY = "node_memory"
    """Memory pressure on the node; the value is the share of time lost to it."""
    LINK_DOWN = "link_down"
    """An InfiniBand port without a link; the detail is the port's name."""
    STORAGE = "storage"
    """I/O pressure on the node; the value is the share of time lost to it."""
    THROTTLED = "throttled"
    """Throttled GPU clocks; the detail gives the reason."""

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
    """A symptom of a machine.

    Attributes:
        at_ns: When the symptom was last seen, on the monotonic clock.
        value: A number whose meaning depends on the kind.
        detail: A word or two whose meaning depends on the kind.
    """

    kind: SymptomKind
    at_ns: int
    value: float = 0.0
    detail: str = ""
