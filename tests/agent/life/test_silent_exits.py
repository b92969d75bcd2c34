"""Ranks whose tapes do not show how they ended: the exit code does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.conftest import JOB
from tests.agent.life.test_life import up_on
from tests.agent.training import page_of
from tests.support.commands.running import Running
from tests.support.waiting import until

RANK = Path(__file__).parents[2] / "processes" / "dying_rank.py"


@pytest.mark.parametrize(
    ("command", "fate"),
    [
        ("exit 0", "has ended"),
        ("exit 3", "is dead: its process is gone"),
        ("finish 0", "has ended"),
        ("finish 3", "has failed with exit code 3"),
        ("give-up", "is dead: its process is gone with BackendGaveUp"),
    ],
)
def test_exit_code(base: Path, agent: Callable[..., Running], command: str, fate: str) -> None:
    """By `os._exit`, or at the end of its script: only with code 0 does no series and no line report a failure."""
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
        stdin.write(f"{command}\n")
        stdin.flush()
        until(lambda: f"rank 1 {fate}\n" in running.out)
        # The line may come a turn before the page shows the same.
        lines = until(lambda: lines if (lines := up_on(page_of(base))).count("} 1.0") == 1 else "")
        up = [line for line in lines.splitlines() if 'rank="1"' in line]
        assert [line.endswith(" 0.0") for line in up] == ([] if command.endswith("0") else [True])
        assert ("is dead" in running.out) == fate.startswith("is dead")
    finally:
        for process in processes:
            process.kill()
            process.communicate()
