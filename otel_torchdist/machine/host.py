"""Reads memory and processor time of the node."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from otel_torchdist.machine.model import Memory

_MEMORY_LINE: Final = re.compile(r"^(\w+):\s+(\d{1,15}) kB$", re.MULTILINE)
_CPU_MODES: Final = ("user", "nice", "system", "idle", "iowait", "interrupt", "softirq", "steal")
"""Of the columns of `/proc/stat`, in order; `softirq` has no mode of its own in the conventions."""
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


def read_memory(proc: Path) -> Memory | None:
    """Read `/proc/meminfo`; None if it is incomplete."""
    try:
        text = (proc / "meminfo").read_text("ascii", "replace")
    except OSError:
        return None
    found = {name: int(size) * 1024 for name, size in _MEMORY_LINE.findall(text)}
    total, free, available = (found.get(name) for name in ("MemTotal", "MemFree", "MemAvailable"))
    if not total or free is None or available is None:
        return None
    buffers, cached = found.get("Buffers", 0), found.get("Cached", 0)
    used = max(total - free - buffers - cached, 0)
    states = {"used": used, "free": free, "buffers": buffers, "cached": cached}
    swapped = max(found.get("SwapTotal", 0) - found.get("SwapFree", 0), 0)
    return Memory(total, available, states, swapped)


def read_cpu_ticks(proc: Path) -> dict[str, int]:
    """Read the processor time of all cores in clock ticks, by `cpu.mode`; empty if it cannot be read."""
    try:
        first = (proc / "stat").read_text("ascii", "replace").partition("\n")[0].split()
        counts = [int(word) for word in first[1:]] if first[:1] == ["cpu"] else []
    except (OSError, ValueError):
        return {}
    ticks: dict[str, int] = dict(zip(_CPU_MODES, counts, strict=False))
    if "softirq" in ticks:
        ticks["interrupt"] += ticks.pop("softirq")
    return ticks


def seconds(ticks: int) -> float:
    """Clock ticks as seconds."""
    return ticks / _TICKS_PER_SECOND
