"""Reads how often the ports of InfiniBand and RoCE adapters have lost their links."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from otel_torchdist.naming import readable

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
