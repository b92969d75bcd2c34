"""Counters of the machine, read from the kernel without us."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PRESSURE: Final = Path("/proc/pressure")
_MODES: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


@dataclass(frozen=True)
class MachineCounters:
    """Counters of the machine at one moment.

    Attributes:
        cpu_s: Processor time by mode, as in /proc/stat.
        network: By interface and direction, bytes.
        dropped: By interface, packets that were dropped.
        errors: By interface, packets with errors.
        pressure_s: By resource and severity, seconds.
        memory: Bytes by name, as in /proc/meminfo.
    """

    cpu_s: dict[str, float]
    network: dict[tuple[str, str], int]
    dropped: dict[str, int]
    errors: dict[str, int]
    pressure_s: dict[tuple[str, str], float]
    memory: dict[str, int]

    @staticmethod
    def read() -> MachineCounters:
        """Read them now."""
        ticks = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        network: dict[tuple[str, str], int] = {}
        dropped: dict[str, int] = {}
        errors: dict[str, int] = {}
        for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
            name, _, rest = line.partition(":")
            words = [int(word) for word in rest.split()]
            name = name.strip()
            network[name, "receive"], network[name, "transmit"] = words[0], words[8]
            errors[name], dropped[name] = words[2] + words[10], words[3] + words[11]
        pressure: dict[tuple[str, str], float] = {}
        for resource in _PRESSURE.iterdir() if _PRESSURE.is_dir() else ():
            for line in resource.read_text().splitlines():
                severity, *words = line.split()
                pressure[resource.name, severity] = int(words[-1].removeprefix("total=")) / 1e6
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        memory = {name.rstrip(":"): int(size) << 10 for name, size, *_ in lines}
        cpu_s = {mode: int(tick) * tick_s for mode, tick in zip(_MODES, ticks, strict=True)}
        return MachineCounters(cpu_s, network, dropped, errors, pressure, memory)
