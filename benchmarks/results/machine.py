"""Describes the machine on which the figures were measured."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path


def describe_machine() -> dict[str, str | int | float]:
    """Return processor, system and versions; `load` is the number of processes that were runnable just before."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 0,
        "system": platform.platform(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": version("torch"),
        "opentelemetry-sdk": version("opentelemetry-sdk"),
        "otel-torchdist": version("otel-torchdist"),
    }


def _cpu_model() -> str:
    """Return the name of the processor; the architecture if Linux does not provide a name."""
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.machine()
