"""Ranks that leave without recording it on their tapes: the exit code decides whether that is a death."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.conftest import JOB
from tests.agent.training import page_of
from tests.support.commands.running import Running
from tests.support.waiting import until

RANK = Path(__file__).parents[2] / "processes" / "dying_rank.py"


@pytest.mark.parametrize(("code", "fate"), [(0, "has ended"), (3, "is dead: its process is gone")])
def test_rank_that_leaves_by_os_exit(base: Path, agent: Callable[..., Running], code: int, fate: str) -> None:
    """With code 0 and outside any operation it has ended: neither a series nor the log reports it dead."""
    directory = base / JOB
    directory.mkdir(mode=0o700, parents=True)
    processes = [
        subprocess.Popen(
            [sys.executable, RANK, directory, str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        running = agent(OTEL_METRICS_EXPORTER="prometheus")
        until(lambda: page_of(base).count("} 1.0\n") >= 2)
        stdin = processes[1].stdin
        assert stdin is not None
        stdin.write(f"exit {code}\n")
        stdin.flush()
        until(lambda: f"rank 1 {fate}\n" in running.out)
        up = [line for line in page_of(base).splitlines() if line.startswith("torchdist_up{") and 'rank="1"' in line]
        assert [line.endswith(" 0.0") for line in up] == ([] if code == 0 else [True])
        assert code or "is dead" not in running.out
    finally:
        for process in processes:
            process.kill()
            process.communicate()
