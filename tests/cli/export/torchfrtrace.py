"""PyTorch's own analyser of dumps, as the installed torch has it."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.support.launch.warm_python import WarmPython

ANALYSE: Final = Path(__file__).parent / "workers" / "analyse.py"


@dataclass(frozen=True)
class Analysis:
    """What it reports of one folder.

    Attributes:
        opened: How many dumps it has read.
        log: Its output.
        error: The exception that ended it, or ''.
    """

    opened: int
    log: str
    error: str


@cache
def why_not() -> str:
    """Why it cannot be run; '' if it can."""
    if importlib.util.find_spec("torch.distributed.flight_recorder") is None:
        return f"the wheel of torch {version('torch')} has no analyser of flight recorder dumps"
    return ""


def analyse(python: WarmPython, scratch: Path, folders: Sequence[Path], *options: str) -> list[Analysis]:
    """Analyse folders one after the other.

    Args:
        python: Runs it.
        scratch: For its output.
        folders: Those with dumps.
        *options: Of `torchfrtrace`.
    """
    scratch.mkdir(exist_ok=True)
    [done] = python.run(ANALYSE, [{}], scratch, [shlex.join(options), *map(str, folders)])
    assert done.code == 0, done.err
    return [Analysis(line["opened"], line["log"], line["error"]) for line in done.lines()]
