"""Reads the node's symptoms that may explain a stall (GPUs are read elsewhere), and the GPU that each rank uses."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from otel_torchdist.model.rank_state.symptoms import Symptom, SymptomKind
from otel_torchdist.model.text import readable
from otel_torchdist.node.job.description_file import gpu_of
from otel_torchdist.node.processes.cgroups import CgroupFile, cgroup_files
from otel_torchdist.node.processes.state import belongs_to
from otel_torchdist.tape.identity import TapeIdentity, process_start_ticks, shares_pids

# --- symptoms ---------------------------------------------------------------------------------------------------------
# Symptoms of a machine that may explain a stall: evidence beside a verdict, never a verdict by itself.


THRASHING_SHARE: Final = 0.1
"""Minimum share of time in which all tasks wait for memory: a node or cgroup above it is thrashing."""
SLOW_STORAGE_SHARE: Final = 0.5
"""Minimum share of time in which all tasks wait for storage: storage above it is slow. Loading data rarely reaches it.
"""
KEPT_NS: Final = 300_000_000_000
"""Time for which a symptom is remembered after it was last seen."""


class RankSymptoms(Protocol):
    """A source of symptoms."""

    def symptoms_of(self, nonce: int) -> tuple[Symptom, ...]:
        """Return the symptoms that may explain a stall of the rank whose tape has this nonce."""
        ...


@dataclass(frozen=True, slots=True)
class MachineReading:
    """The symptoms of a machine at one moment.

    Attributes:
        host: Name of the node.
        gpus: UUID of each rank's GPU, by the nonce of its tape; '' if the rank has none, or if unknown.
        symptoms: Symptoms that concern all ranks of the node.
        symptoms_of_cgroups: Symptoms that concern one rank, by nonce.
        symptoms_of_gpus: Symptoms that concern the ranks on one GPU, by its UUID.
    """

    host: str
    gpus: Mapping[int, str] = field(default_factory=dict[int, str])
    symptoms: tuple[Symptom, ...] = ()
    symptoms_of_cgroups: Mapping[int, tuple[Symptom, ...]] = field(default_factory=dict[int, tuple[Symptom, ...]])
    symptoms_of_gpus: Mapping[str, tuple[Symptom, ...]] = field(default_factory=dict[str, tuple[Symptom, ...]])

    def symptoms_of(self, nonce: int) -> tuple[Symptom, ...]:
        """Return the symptoms that may explain a stall of the rank whose tape has this nonce."""
        of_gpu = self.symptoms_of_gpus.get(self.gpus.get(nonce, ""), ())
        return (*of_gpu, *self.symptoms_of_cgroups.get(nonce, ()), *self.symptoms)


class SymptomLog:
    """The newest symptom of each kind, of one machine, cgroup or GPU."""

    def __init__(self) -> None:
        self._newest: dict[SymptomKind, Symptom] = {}

    def note(self, symptom: Symptom) -> None:
        """Remember a symptom, and replace the earlier one of its kind."""
        self._newest[symptom.kind] = symptom

    def note_memory(self, kind: SymptomKind, share: float, now_ns: int) -> None:
        """Remember a memory symptom, if the share of time in which all tasks wait for memory is high."""
        if share >= THRASHING_SHARE:
            self.note(Symptom(kind, now_ns, share))

    def recent(self, now_ns: int) -> tuple[Symptom, ...]:
        """Return the symptoms that were last seen within `KEPT_NS`, and forget the others."""
        self._newest = {kind: symptom for kind, symptom in self._newest.items() if now_ns - symptom.at_ns <= KEPT_NS}
        return tuple(self._newest.values())


class ErrorCounters:
    """Error counters of the kernel and of devices. They may be nonzero at the first reading; only growth counts."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def grown(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return the growth of each counter that has grown since the last reading.

        A counter below its last value was reset, or its driver was reloaded: its growth counts from zero.

        Args:
            counts: All counters now. A missing counter is forgotten, because its device is gone.
        """
        growth: dict[str, int] = {}
        for name, count in counts.items():
            last = self._last.get(name, count)
            growth[name] = count - last if count >= last else count
        self._last = dict(counts)
        return {name: increase for name, increase in growth.items() if increase}


# --- reading ----------------------------------------------------------------------------------------------------------


MAX_RANKS: Final = 256


@dataclass(frozen=True, slots=True)
class WatchedRank:
    """A rank of this machine.

    Attributes:
        tape: Path of its tape.
        identity: Identity on the tape.
        owner: Id of the user who owns the tape.
    """

    tape: Path
    identity: TapeIdentity
    owner: int


@dataclass(slots=True)
class _Rank:
    """The state of a rank between two readings."""

    cgroup: RankCgroup
    gpu: str = ""
    log: SymptomLog = field(default_factory=SymptomLog)


class MachineReader:
    """Reader of the machine's symptoms, without GPUs. Not thread-safe."""

    def __init__(self, root: Path = Path("/")) -> None:
        """Prepare to read; `root` is the parent of `/proc` and `/sys`, another directory in tests."""
        self._root = root
        self._host = socket.gethostname()
        self._ranks: dict[int, _Rank] = {}
        self._link_downs = ErrorCounters()
        self._log = SymptomLog()

    def read(self, ranks: Sequence[WatchedRank], now_ns: int) -> MachineReading:
        """Read all symptoms once.

        Args:
            ranks: The ranks of this machine; only the first `MAX_RANKS` are read.
            now_ns: Monotonic time.
        """
        self._read_node(now_ns)
        self._ranks = {rank.identity.nonce: self._read_rank(rank, now_ns) for rank in ranks[:MAX_RANKS]}
        return MachineReading(
            self._host,
            {nonce: rank.gpu for nonce, rank in self._ranks.items()},
            self._log.recent(now_ns),
            {nonce: rank.log.recent(now_ns) for nonce, rank in self._ranks.items()},
        )

    def _read_node(self, now_ns: int) -> None:
        pressure = self._root / "proc/pressure"
        self._log.note_memory(SymptomKind.NODE_MEMORY, stalled_share(pressure / "memory"), now_ns)
        storage = stalled_share(pressure / "io")
        if storage >= SLOW_STORAGE_SHARE:
            self._log.note(Symptom(SymptomKind.STORAGE, now_ns, storage))
        for port in self._link_downs.grown(read_link_downs(self._root / "sys")):
            self._log.note(Symptom(SymptomKind.LINK_DOWN, now_ns, detail=port))

    def _read_rank(self, watched: WatchedRank, now_ns: int) -> _Rank:
        rank = self._ranks.get(watched.identity.nonce)
        if rank is None:
            rank = _Rank(RankCgroup(watched.identity, watched.owner, self._root))
        # A rank describes its GPU only after its first operation there.
        rank.gpu = rank.gpu or gpu_of(watched.tape, watched.owner)
        rank.log.note_memory(SymptomKind.CGROUP_MEMORY, rank.cgroup.memory_pressure(), now_ns)
        return rank


# --- pressure ---------------------------------------------------------------------------------------------------------
# Reads pressure stall information: the time in which all tasks waited for memory or storage, on the node or in a
# cgroup.


_FULL: Final = re.compile(r"^full avg10=(\d{1,3}\.\d+) avg60=\S+ avg300=\S+ total=\d{1,19}$", re.MULTILINE)
_MEMORY: Final = CgroupFile("memory.pressure", "memory")
_TYPE: Final = "cgroup.type"


def stalled_share(path: Path) -> float:
    """Return the share of the last 10 s in which all non-idle tasks waited, from 0 to 1.

    0.0 if the kernel does not report it, for example because it was booted with `psi=0`.
    """
    try:
        match = _FULL.search(path.read_text("ascii", "replace"))
    except OSError:
        return 0.0
    return min(float(match[1]) / 100, 1.0) if match is not None else 0.0


class RankCgroup:
    """The cgroup of a tape's writer; in a container, the container's cgroup."""

    def __init__(self, identity: TapeIdentity, owner: int, root: Path = Path("/")) -> None:
        """Find the cgroup. There is none if the process is in another PID namespace, or from another boot.

        Args:
            identity: Identity on the tape.
            owner: Owner of the tape. Another user could forge the pid, to learn about other processes.
            root: Parent of `/proc` and the mounts; another directory in tests.
        """
        self._identity = identity
        is_in_reach = shares_pids(identity) and (owner == os.geteuid() or belongs_to(identity.pid, owner))
        paths = cgroup_files(identity.pid, _MEMORY, root) if is_in_reach else ()
        # The root cgroup is left out: its file shows the whole node. Only the root cgroup has no `cgroup.type`.
        self._memory = next((path for path in paths if path.exists() and (path.parent / _TYPE).exists()), None)

    def memory_pressure(self) -> float:
        """Return its `stalled_share` for memory; 0.0 if unknown, or if the pid belongs to another process by now."""
        if self._memory is None or process_start_ticks(self._identity.pid) != self._identity.pid_start_ticks:
            return 0.0
        return stalled_share(self._memory)


# --- links ------------------------------------------------------------------------------------------------------------
# Reads how often each port of the InfiniBand and RoCE adapters has lost its link.


MAX_PORTS: Final = 32


def read_link_downs(sys: Path) -> dict[str, int]:
    """Return the number of lost links by adapter and port (`mlx5_0/1`), for at most `MAX_PORTS` ports.

    Ports without this counter are left out.
    """
    link_downs: dict[str, int] = {}
    for adapter in _names(sys / "class/infiniband"):
        for port in _names(sys / "class/infiniband" / adapter / "ports"):
            count = _count(sys / "class/infiniband" / adapter / "ports" / port / "counters/link_downed")
            if count is not None and len(link_downs) < MAX_PORTS:
                link_downs[readable(f"{adapter}/{port}", 64)] = count
    return link_downs


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _count(path: Path) -> int | None:
    """Read a counter; None if it does not exist, or the driver cannot read it."""
    try:
        text = path.read_text("ascii", "replace").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and len(text) <= 20 else None
