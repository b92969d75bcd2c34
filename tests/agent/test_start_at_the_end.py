"""A program that had no agent while it ran."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.agent.training import WORKERS, environment
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.waiting import until


def test_it_gets_one_when_it_ends(base: Path, receiver: OtlpReceiver, tmp_path: Path) -> None:
    """No agent starts beside its `os.wait()`; one does at its end, silently, though Python starts no threads then."""
    command = [sys.executable, WORKERS / "awaits_children.py", tmp_path / "store"]
    done = subprocess.run(command, env=environment(base, receiver), capture_output=True, text=True, timeout=60)
    word, pid = done.stdout.split()[-2:]
    os.kill(int(pid), signal.SIGKILL)
    assert (done.returncode, word, done.stderr) == (0, "trained", "")
    until(lambda: [span.name for span in receiver.spans()].count("all_reduce") == 3)
