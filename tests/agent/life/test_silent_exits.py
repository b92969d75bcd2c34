"""Ranks whose tapes do not show how they ended: the exit code does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.conftest import JOB
from tests.agent.life.test_life import up_on
from tests.agent.training import page_of
from tests.support.commands.asking import ask
from tests.support.commands.running import Running
from tests.support.waiting import until

RANK = Path(__file__).parents[2] / "processes" / "dying_rank.py"
FATES = (
    ("exit 0", "has ended", "finished"),
    ("exit 3", "is dead: its process is gone", "dead"),
    ("finish 0", "has ended", "finished"),
    ("finish 3", "has failed with exit code 3", "failed"),
    ("give-up", "is dead: its process is gone with BackendGaveUp", "dead"),
)
"""How each rank ends, and what the agent and `diagnose` say of it."""


@pytest.fixture
def ranks(base: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """A rank for each fate, and one that stays."""
    directory, size = base / JOB, len(FATES) + 1
    directory.mkdir(mode=0o700, parents=True)
    processes = [
        subprocess.Popen(
            [sys.executable, RANK, directory, str(rank), str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def test_exit_codes(base: Path, agent: Callable[..., Running], ranks: list[subprocess.Popen[str]]) -> None:
    """By `os._exit`, or at the end of its script: only code 0 is no failure in series, lines and `diagnose`."""
    running = agent(OTEL_METRICS_EXPORTER="prometheus", OTEL_TRACES_EXPORTER="none")
    until(lambda: page_of(base).count("} 1.0\n") >= len(ranks))
    failed: set[int] = set()
    for rank, (command, fate, _) in enumerate(FATES):
        deaths = running.out.count("is dead")
        stdin = ranks[rank].stdin
        assert stdin is not None
        stdin.write(f"{command}\n")
        stdin.flush()
        running.wait_for(rf"rank {rank} {fate}$")
        # The line may come a turn before the page shows the same.
        alive = len(ranks) - 1 - rank
        up = until(lambda alive=alive: up if (up := up_on(page_of(base))).count("} 1.0") == alive else "")
        failed |= set() if command.endswith("0") else {rank}
        assert {int(line.partition('rank="')[2][0]) for line in up.splitlines() if line.endswith(" 0.0")} == failed
        assert (running.out.count("is dead") > deaths) == fate.startswith("is dead")
    lives = [rank["life"] for rank in ask(base, "--json").document["ranks"]]
    assert lives == [*(life for *_, life in FATES), "running"]
