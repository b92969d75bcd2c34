"""Symptoms of a machine that may explain a stall. A symptom supports a verdict and never is one."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

RECENT_NS: Final = 60_000_000_000
"""Maximum time in ns between a momentary symptom and the wait that it may explain."""
LASTING_NS: Final = 10_000_000_000
"""The same for a lasting symptom, which is observed every few seconds."""
XID_MEANINGS: Final[Mapping[int, str]] = {
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
MACHINE_XIDS: Final = frozenset({48, 64, 74, 79, 95, 119, 120})
"""Xids of these that NVIDIA's catalog attributes to hardware and that a restart of the program does not cure.

Programs cause 13 and 31 themselves; 63 and 94 need no more than a restart.
"""


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

    @property
    def lasts(self) -> bool:
        """Whether it lasts and is observed repeatedly, rather than occurring at one moment."""
        match self:
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

    def is_recent(self, since_ns: int) -> bool:
        """Return whether the symptom may explain a wait that began at `since_ns`."""
        return self.at_ns >= since_ns - (LASTING_NS if self.kind.lasts else RECENT_NS)

    @property
    def xid(self) -> int:
        """The Xid of a GPU error; 0 for other kinds, and for values that are no Xid."""
        return round(self.value) if self.kind is SymptomKind.XID and 0 < self.value < 1e6 else 0
