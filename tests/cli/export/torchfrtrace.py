"""`torchfrtrace` of the installed torch, PyTorch's analyzer of dumps."""

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

ANALYZE: Final = Path(__file__).parent / "workers" / "analyze.py"


@dataclass(frozen=True)
class Analysis:
    """Its report on one folder.

    Attributes:
        opened: Number of dumps that it has read.
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
        return f"the wheel of torch {version('torch')} has no analyzer of flight recorder dumps"
    return ""


def analyze(python: WarmPython, scratch: Path, folders: Sequence[Path], *options: str) -> list[Analysis]:
    """Analyse folders one after the other.

    Args:
        python: Runs it.
        scratch: For its output.
        folders: Those with dumps.
        *options: Of `torchfrtrace`.
    """
    scratch.mkdir(exist_ok=True)
    [done] = python.run(ANALYZE, [{}], scratch, [shlex.join(options), *map(str, folders)])
    assert done.code == 0, done.err
    return [Analysis(line["opened"], line["log"], line["error"]) for line in done.lines()]
