"""Reads network interfaces and InfiniBand ports: raw counters, and speeds where they are known."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.naming import readable

MAX_INTERFACES: Final = 16
MAX_PORTS: Final = 32
WORD_BYTES: Final = 4
"""InfiniBand counts data in units of four bytes."""
_PORT_ERRORS: Final = ("link_downed", "symbol_error", "port_rcv_errors", "port_xmit_discards")
_RATE: Final = re.compile(r"^(\d+(?:\.\d+)?) Gb/sec")
_FIELDS: Final = 16
"""Columns of `/proc/net/dev`: eight for what is received, and eight for what is sent."""


@dataclass(frozen=True, slots=True)
class InterfaceCounters:
    """What `/proc/net/dev` shows of an interface; see `Interface`."""

    received: int
    transmitted: int
    errors: int
    dropped: int


@dataclass(frozen=True, slots=True)
class PortCounters:
    """What the kernel shows of an InfiniBand port; see `InfinibandPort`."""

    received: int
    transmitted: int
    errors: dict[str, int]


def read_interfaces(proc: Path, sys: Path) -> dict[str, InterfaceCounters]:
    """Read the interfaces that lead to other machines, at most `MAX_INTERFACES` of them.

    Those of devices if there are any: a node of Kubernetes has hundreds of virtual ones. A container has only virtual
    ones, and then those count.
    """
    try:
        lines = (proc / "net/dev").read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    found: dict[str, InterfaceCounters] = {}
    for line in lines:
        name, colon, rest = line.rpartition(":")
        words = rest.split()
        if not colon or len(words) < _FIELDS or not all(map(str.isdecimal, words)):
            continue
        numbers = [int(word) for word in words]
        found[name.strip()] = InterfaceCounters(
            numbers[0], numbers[8], numbers[2] + numbers[10], numbers[3] + numbers[11]
        )
    found.pop("lo", None)
    physical = [name for name in found if (sys / "class/net" / name / "device").exists()]
    chosen = sorted(physical or found)[:MAX_INTERFACES]
    return {readable(name, 32): found[name] for name in chosen}


def speed_of(name: str, sys: Path) -> float | None:
    """Return the speed of an interface in bytes per second; virtual ones say -1, or refuse."""
    try:
        megabits = int((sys / "class/net" / name / "speed").read_text("ascii", "replace"))
    except (OSError, ValueError):
        return None
    return megabits * 1e6 / 8 if megabits > 0 else None


def read_ports(sys: Path) -> dict[str, PortCounters]:
    """Read all InfiniBand ports, at most `MAX_PORTS` of them; one without counters is left out."""
    found: dict[str, PortCounters] = {}
    for adapter in _names(sys / "class/infiniband"):
        for port in _names(sys / "class/infiniband" / adapter / "ports"):
            folder = sys / "class/infiniband" / adapter / "ports" / port / "counters"
            received, transmitted = _count(folder / "port_rcv_data"), _count(folder / "port_xmit_data")
            if received is None or transmitted is None:
                continue
            if len(found) == MAX_PORTS:
                return found
            errors = {name: count for name in _PORT_ERRORS if (count := _count(folder / name)) is not None}
            name = readable(f"{adapter}/{port}", 64)
            found[name] = PortCounters(WORD_BYTES * received, WORD_BYTES * transmitted, errors)
    return found


def rate_of(port: str, sys: Path) -> float | None:
    """Return the speed of an InfiniBand port in bytes per second: `100 Gb/sec (4X EDR)`; None if it has no link."""
    adapter, _, number = port.partition("/")
    try:
        text = (sys / "class/infiniband" / adapter / "ports" / number / "rate").read_text("ascii", "replace")
    except OSError:
        return None
    match = _RATE.match(text)
    return float(match[1]) * 1e9 / 8 or None if match is not None else None


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
