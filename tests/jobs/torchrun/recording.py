"""Jobs under torchrun that record to a directory of their own, and what is announced about them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.support.launch.quiet import QUIET

WORKERS: Final = Path(__file__).parent / "workers"
TWO_RANKS: Final = ("--standalone", "--nproc-per-node=2")
COMMAND: Final = re.compile(r"^otel_torchdist: details: otel-torchdist diagnose (\w{8}) --run-dir (\S+)$", re.MULTILINE)
"""The line of a notice that names a command."""


def switched_on(tapes: Path) -> dict[str, str]:
    """The environment with default settings that records to a directory, from which an agent reads."""
    tapes.mkdir(0o700)
    return {
        **QUIET,
        "OTEL_PYTHON_TORCHDIST_READER": "agent",
        "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "0",
        "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(tapes),
        "OTEL_PYTHON_TORCHDIST_TAPE_ON_DISK": "true",
    }


def notices(log: str) -> int:
    """How many lines of ours there are; each must be whole, at the begin of a line."""
    assert log.count("otel_torchdist: ") == len(re.findall(r"^otel_torchdist: ", log, re.MULTILINE))
    return log.count("otel_torchdist: ")
