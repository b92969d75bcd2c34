"""Reads what the node shows that may explain a stall, and which GPU each of its ranks uses; without asking the GPUs."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otel_torchdist.job.description_file import gpu_of
from otel_torchdist.machine.symptoms import STORAGE_IS_SLOW, ErrorCounters, MachineReading, SymptomLog
from otel_torchdist.model.symptoms import Symptom, SymptomKind
from otel_torchdist.naming import readable
from otel_torchdist.processes.cgroups import CgroupFile, cgroup_files
from otel_torchdist.processes.state import belongs_to
from otel_torchdist.tape.identity import TapeIdentity, process_start_ticks, shares_pids

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


# ----------------------------------------------------------------------------------------------------------------------
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


# --- Reads how often the ports of InfiniBand and RoCE adapters have lost their links ----------------------------------


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
