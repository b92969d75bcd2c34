"""Reads pressure stall information: of the node, and of cgroups of version 2."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from otel_torchdist.machine.model import Pressure, Resource

_LINE: Final = re.compile(
    r"^(?P<kind>some|full) avg10=(?P<share>\d{1,3}\.\d+) avg60=\S+ avg300=\S+ total=(?P<total>\d{1,19})$", re.MULTILINE
)


def read_pressure(path_of: Callable[[Resource], Path | None]) -> dict[Resource, Pressure]:
    """Read the pressure on every resource that the kernel reports; a kernel booted with `psi=0` refuses to."""
    found: dict[Resource, Pressure] = {}
    for resource in Resource:
        path = path_of(resource)
        try:
            text = path.read_text("ascii", "replace") if path is not None else ""
        except OSError:
            continue
        pressure = parse_pressure(text)
        if pressure is not None:
            found[resource] = pressure
    return found


def parse_pressure(text: str) -> Pressure | None:
    """Read a pressure file; None if it is none. Older kernels have no line `full` for processors."""
    lines = {match["kind"]: (float(match["share"]) / 100, int(match["total"]) / 1e6) for match in _LINE.finditer(text)}
    if "some" not in lines:
        return None
    (some_share, some_s), (full_share, full_s) = lines["some"], lines.get("full", (0.0, 0.0))
    return Pressure(min(some_share, 1.0), min(full_share, 1.0), some_s, full_s)
