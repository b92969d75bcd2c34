"""Reads what the node shows that may explain a stall, and which GPU each of its ranks uses; without asking the GPUs."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otel_torchdist.job.description_file import gpu_of
from otel_torchdist.machine.links import read_link_downs
from otel_torchdist.machine.pressure import RankCgroup, stalled_share
from otel_torchdist.machine.symptoms import STORAGE_IS_SLOW, ErrorCounters, MachineReading, SymptomLog
from otel_torchdist.model.symptoms import Symptom, SymptomKind
from otel_torchdist.tape.identity import TapeIdentity

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
