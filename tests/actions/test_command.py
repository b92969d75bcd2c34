"""What the command learns of a stall."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from otel_torchdist.actions.perform import run_command
from otel_torchdist.actions.stalled_run import StalledRun


def test_command_learns_of_the_stall(stall: StalledRun, tmp_path: Path) -> None:
    """The command gets the verdict in its environment and as JSON on standard input; no shell parses its words."""
    script = tmp_path / "page.py"
    script.write_text(
        "import json, os, sys\n"
        "stall = json.load(sys.stdin)\n"
        "named = os.environ['TORCHDIST_STALL_VERDICT'], os.environ['TORCHDIST_STALL_RANKS']\n"
        "print(sys.argv[1], *named, stall['trace_id'])\n"
        "sys.exit(3)\n"
    )
    said = run_command(f"{sys.executable} {script} '$HOME; echo'", stall)
    assert said == f"exited with code 3: $HOME; echo absent 2 {stall.trace_id}"


def test_command_that_hangs(stall: StalledRun) -> None:
    """A command that hangs is killed in time, with the processes that it started."""
    began = time.monotonic()
    said = run_command("sh -c 'sleep 60 & sleep 60'", stall, timeout_s=0.3)
    assert said == "took longer than 0.3 s and was killed"
    assert time.monotonic() - began < 10
