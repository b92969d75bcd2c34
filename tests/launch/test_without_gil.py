"""Free-threaded builds of Python, as a job sees them: none is installed here, so their two flags are set by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

JOB = """
import sys
if {runs_without_gil}:
    sys._is_gil_enabled = lambda: False
sys.abiflags = "t"
import pathlib, torch, torch.distributed as dist
for _ in range(2):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(1))
    tapes = len(list(pathlib.Path({folder!r}).rglob("*.tape")))
    dist.destroy_process_group()
print("trained with tapes:", tapes)
"""
WARNING = (
    "otel_torchdist is off in this process: its tape needs the GIL, and this Python runs without one. "
    "PYTHON_GIL=1 enables the GIL"
)


def run(tapes: Path, runs_without_gil: bool, **environ: str) -> tuple[list[str], list[str]]:
    """Run the job. Return the lines of its output, and those of its log about the GIL."""
    ours = {
        "OTEL_PYTHON_TORCHDIST_ENABLED": "true",
        "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(tapes),
        "OTEL_PYTHON_TORCHDIST_READER": "none",
    }
    code = JOB.format(runs_without_gil=runs_without_gil, folder=str(tapes))
    command, variables = [sys.executable, "-c", code], {**os.environ, **ours, **environ}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    out = [line for line in done.stdout.splitlines() if not line.startswith("[Gloo]")]
    return out, [line for line in done.stderr.splitlines() if "GIL" in line]


@pytest.mark.parametrize(("local_rank", "lines"), [("0", [WARNING]), ("1", [])])
def test_off_without_gil(local_rank: str, lines: list[str], memory: Path) -> None:
    """Without a GIL a job trains unrecorded, and the first rank of the node says so once, whatever groups follow."""
    assert run(memory, True, LOCAL_RANK=local_rank) == (["trained with tapes: 0"], lines)


def test_recorded_with_gil(memory: Path) -> None:
    """Once its GIL is enabled, a free-threaded build is recorded, with a tape for each default group."""
    assert run(memory, False, OTEL_PYTHON_TORCHDIST_CAPTURE="python") == (["trained with tapes: 2"], [])
