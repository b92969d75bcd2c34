"""Reads the node and what its ranks use of it, without GPUs."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.job.description_file import gpu_of
from otel_torchdist.machine.host import read_cpu_ticks, read_memory, seconds
from otel_torchdist.machine.links import rate_of, read_interfaces, read_ports, speed_of
from otel_torchdist.machine.model import (
    CgroupFigures,
    InfinibandPort,
    Interface,
    MachineReading,
    Pressure,
    RankFigures,
    Resource,
)
from otel_torchdist.machine.pressure import read_pressure
from otel_torchdist.machine.ranks import RankFiles
from otel_torchdist.machine.symptoms import MEMORY_IS_SHORT, STORAGE_IS_SLOW, SymptomLog
from otel_torchdist.machine.totals import Totals
from otel_torchdist.model.symptoms import Symptom, SymptomKind
from otel_torchdist.tape.identity import TapeIdentity

SPEEDS_NS: Final = 60_000_000_000
"""Speeds hardly ever change, and reading one takes a lock of the whole network stack."""
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


class MachineReader:
    """Reads the machine. Not thread-safe."""

    def __init__(self, root: Path = Path("/")) -> None:
        """Read nothing yet; `root` is where `/proc` and `/sys` are, another place in tests."""
        self._root, self._proc, self._sys = root, root / "proc", root / "sys"
        self._host = socket.gethostname()
        self._totals = Totals()
        self._speeds: dict[str, float | None] = {}
        self._speeds_ns: int | None = None
        self._files: dict[int, RankFiles] = {}
        self._gpus: dict[int, str] = {}
        self._node = SymptomLog()
        self._cgroups: dict[int, SymptomLog] = {}

    def read(self, ranks: Sequence[WatchedRank], now_ns: int) -> MachineReading:
        """Read everything once.

        Args:
            ranks: The ranks of this machine; beyond `MAX_RANKS`, the others have no figures of their own.
            now_ns: Monotonic clock.
        """
        if self._speeds_ns is None or now_ns - self._speeds_ns >= SPEEDS_NS:
            self._speeds, self._speeds_ns = {}, now_ns
        pressure = read_pressure(lambda one: self._proc / "pressure" / one.value)
        _note(self._node, pressure, SymptomKind.NODE_MEMORY, now_ns)
        storage = pressure.get(Resource.IO)
        if storage is not None and storage.full_share >= STORAGE_IS_SLOW:
            self._node.note(Symptom(SymptomKind.STORAGE, now_ns, storage.full_share))
        interfaces, ports = self._interfaces(), self._ports(now_ns)
        figures = self._figures(ranks[:MAX_RANKS], now_ns)
        ticks = read_cpu_ticks(self._proc)
        cpu = {mode: seconds(self._totals.total(("cpu", mode), count)) for mode, count in ticks.items()}
        self._totals.forget_unread()
        return MachineReading(
            self._host,
            read_memory(self._proc),
            cpu,
            pressure,
            interfaces,
            ports,
            ranks=figures,
            symptoms=self._node.shown(now_ns),
            symptoms_of_cgroups={nonce: log.shown(now_ns) for nonce, log in self._cgroups.items()},
        )

    def _interfaces(self) -> tuple[Interface, ...]:
        total = self._totals.total
        return tuple(
            Interface(
                name,
                total((name, "received"), one.received),
                total((name, "transmitted"), one.transmitted),
                total((name, "errors"), one.errors),
                total((name, "dropped"), one.dropped),
                self._speed(name, speed_of),
            )
            for name, one in read_interfaces(self._proc, self._sys).items()
        )

    def _ports(self, now_ns: int) -> tuple[InfinibandPort, ...]:
        found: list[InfinibandPort] = []
        total = self._totals.total
        for name, one in read_ports(self._sys).items():
            if self._totals.growth((name, "growth"), one.errors.get("link_downed", 0)):
                self._node.note(Symptom(SymptomKind.LINK_DOWN, now_ns, detail=name))
            errors = {kind: total((name, kind), count) for kind, count in one.errors.items()}
            received, transmitted = total((name, "in"), one.received), total((name, "out"), one.transmitted)
            found.append(InfinibandPort(name, received, transmitted, errors, self._speed(name, rate_of)))
        return tuple(found)

    def _speed(self, name: str, read: Callable[[str, Path], float | None]) -> float | None:
        if name not in self._speeds:
            self._speeds[name] = read(name, self._sys)
        return self._speeds[name]

    def _figures(self, ranks: Sequence[WatchedRank], now_ns: int) -> dict[int, RankFigures]:
        nonces = {rank.identity.nonce for rank in ranks}
        self._files = {nonce: files for nonce, files in self._files.items() if nonce in nonces}
        self._gpus = {nonce: gpu for nonce, gpu in self._gpus.items() if nonce in nonces}
        self._cgroups = {nonce: log for nonce, log in self._cgroups.items() if nonce in nonces}
        found: dict[int, RankFigures] = {}
        for rank in ranks:
            nonce = rank.identity.nonce
            if nonce not in self._files:
                self._files[nonce] = RankFiles(rank.identity, rank.owner, self._root)
            files = self._files[nonce]
            process = files.process()
            cgroup = files.cgroup() if process is not None else None
            if cgroup is not None:
                self._note_cgroup(nonce, cgroup, now_ns)
            found[nonce] = RankFigures(process, cgroup, self._gpu_of(rank))
        return found

    def _note_cgroup(self, nonce: int, cgroup: CgroupFigures, now_ns: int) -> None:
        log = self._cgroups.setdefault(nonce, SymptomLog())
        _note(log, cgroup.pressure, SymptomKind.CGROUP_MEMORY, now_ns)

    def _gpu_of(self, rank: WatchedRank) -> str:
        """Return the GPU that a rank has written down; it does so after its first operation there."""
        nonce = rank.identity.nonce
        if not self._gpus.get(nonce):
            self._gpus[nonce] = gpu_of(rank.tape, rank.owner)
        return self._gpus[nonce]


def _note(log: SymptomLog, pressure: Mapping[Resource, Pressure], kind: SymptomKind, now_ns: int) -> None:
    memory = pressure.get(Resource.MEMORY)
    if memory is not None and memory.full_share >= MEMORY_IS_SHORT:
        log.note(Symptom(kind, now_ns, memory.full_share))
