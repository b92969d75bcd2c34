"""Reads what the node shows that may explain a stall, and which GPU each of its ranks uses; without asking the GPUs."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from otel_torchdist.model.naming import readable
from otel_torchdist.model.symptoms import Symptom, SymptomKind
from otel_torchdist.node.job.description_file import gpu_of
from otel_torchdist.node.processes.cgroups import CgroupFile, cgroup_files
from otel_torchdist.node.processes.state import belongs_to
from otel_torchdist.tape.identity import TapeIdentity, process_start_ticks, shares_pids

# --- symptoms ---------------------------------------------------------------------------------------------------------
# What a machine shows that may explain a stall: evidence beside a verdict, never a verdict by itself.
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


# --- reading ----------------------------------------------------------------------------------------------------------


MAX_RANKS: Final = 256


@dataclass(frozen=True, slots=True)
class WatchedRank:
    """A rank of this machine.

    Attributes:
        tape: Its tape.
        identity: The tape's identity.
        owner: The user that it belongs to.
    """

    tape: Path
    identity: TapeIdentity
    owner: int


@dataclass(slots=True)
class _Rank:
    """What is kept of a rank between two readings."""

    cgroup: RankCgroup
    gpu: str = ""
    log: SymptomLog = field(default_factory=SymptomLog)


class MachineReader:
    """Reads the machine. Not thread-safe."""

    def __init__(self, root: Path = Path("/")) -> None:
        """Read nothing yet; `root` is where `/proc` and `/sys` are, another place in tests."""
        self._root = root
        self._host = socket.gethostname()
        self._ranks: dict[int, _Rank] = {}
        self._link_downs = ErrorCounters()
        self._log = SymptomLog()

    def read(self, ranks: Sequence[WatchedRank], now_ns: int) -> MachineReading:
        """Read everything once.

        Args:
            ranks: The ranks of this machine; nothing is read of those beyond `MAX_RANKS`.
            now_ns: Monotonic clock.
        """
        self._read_node(now_ns)
        self._ranks = {rank.identity.nonce: self._read_rank(rank, now_ns) for rank in ranks[:MAX_RANKS]}
        return MachineReading(
            self._host,
            {nonce: rank.gpu for nonce, rank in self._ranks.items()},
            self._log.shown(now_ns),
            {nonce: rank.log.shown(now_ns) for nonce, rank in self._ranks.items()},
        )

    def _read_node(self, now_ns: int) -> None:
        pressure = self._root / "proc/pressure"
        self._log.note_memory(SymptomKind.NODE_MEMORY, stalled_share(pressure / "memory"), now_ns)
        storage = stalled_share(pressure / "io")
        if storage >= STORAGE_IS_SLOW:
            self._log.note(Symptom(SymptomKind.STORAGE, now_ns, storage))
        for port in self._link_downs.grown(read_link_downs(self._root / "sys")):
            self._log.note(Symptom(SymptomKind.LINK_DOWN, now_ns, detail=port))

    def _read_rank(self, watched: WatchedRank, now_ns: int) -> _Rank:
        rank = self._ranks.get(watched.identity.nonce)
        if rank is None:
            rank = _Rank(RankCgroup(watched.identity, watched.owner, self._root))
        # A rank writes down its GPU after its first operation there.
        rank.gpu = rank.gpu or gpu_of(watched.tape, watched.owner)
        rank.log.note_memory(SymptomKind.CGROUP_MEMORY, rank.cgroup.memory_pressure(), now_ns)
        return rank


# --- pressure ---------------------------------------------------------------------------------------------------------
# Reads pressure stall information: how long everything waited for memory or storage, on the node or in a cgroup.


_FULL: Final = re.compile(r"^full avg10=(\d{1,3}\.\d+) avg60=\S+ avg300=\S+ total=\d{1,19}$", re.MULTILINE)
_MEMORY: Final = CgroupFile("memory.pressure", "memory")
_TYPE: Final = "cgroup.type"


def stalled_share(path: Path) -> float:
    """Return the share of the last 10 s in which all tasks that were not idle waited, from 0 to 1.

    0.0 if the kernel does not report it: it was booted with `psi=0`, or the file is damaged.
    """
    try:
        found = _FULL.search(path.read_text("ascii", "replace"))
    except OSError:
        return 0.0
    return min(float(found[1]) / 100, 1.0) if found is not None else 0.0


class RankCgroup:
    """The cgroup of the process that writes a tape; in a container that of the container."""

    def __init__(self, identity: TapeIdentity, owner: int, root: Path = Path("/")) -> None:
        """Find the cgroup. There is none if the process is in another PID namespace, or of another boot.

        Args:
            identity: Identity of the tape.
            owner: Owner of the tape. Other users could forge the pid, to learn about other processes.
            root: Where `/proc` and the mounts are; another place in tests.
        """
        self._identity = identity
        is_in_reach = shares_pids(identity) and (owner == os.geteuid() or belongs_to(identity.pid, owner))
        found = cgroup_files(identity.pid, _MEMORY, root) if is_in_reach else ()
        # The root of all cgroups is no cgroup of the rank's, and shows the whole node; it alone has no type.
        self._memory = next((path for path in found if path.exists() and (path.parent / _TYPE).exists()), None)

    def memory_pressure(self) -> float:
        """Return its `stalled_share` for memory; 0.0 if unknown, or if the pid is another process's by now."""
        if self._memory is None or process_start_ticks(self._identity.pid) != self._identity.pid_start_ticks:
            return 0.0
        return stalled_share(self._memory)


# --- links ------------------------------------------------------------------------------------------------------------
# Reads how often the ports of InfiniBand and RoCE adapters have lost their links.


MAX_PORTS: Final = 32


def read_link_downs(sys: Path) -> dict[str, int]:
    """Return how often each port has lost its link, by adapter and port: `mlx5_0/1`.

    At most `MAX_PORTS` ports; a port without this counter is left out.
    """
    found: dict[str, int] = {}
    for adapter in _names(sys / "class/infiniband"):
        for port in _names(sys / "class/infiniband" / adapter / "ports"):
            count = _count(sys / "class/infiniband" / adapter / "ports" / port / "counters/link_downed")
            if count is not None and len(found) < MAX_PORTS:
                found[readable(f"{adapter}/{port}", 64)] = count
    return found


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _count(path: Path) -> int | None:
    """Read a counter; None for one that there is not, or that the driver cannot read."""
    try:
        text = path.read_text("ascii", "replace").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and len(text) <= 20 else None
