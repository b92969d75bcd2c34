"""Ranks whose tapes do not show how they ended: the exit code does."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.conftest import JOB
from tests.agent.own_agent import OwnAgent
from tests.support.commands.asking import ask

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
    """A rank for each fate, and one more, which stays."""
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


def test_exit_codes(base: Path, ranks: list[subprocess.Popen[str]], caplog: pytest.LogCaptureFixture) -> None:
    """By `os._exit`, or at the end of its script: only code 0 is no failure in series, lines and `diagnose`."""
    caplog.set_level(logging.INFO, "otel_torchdist")
    up = dict.fromkeys(range(len(ranks)), 1.0)
    with contextlib.closing(OwnAgent(base / JOB)) as own:
        own.turn_until(lambda: own.shown("torchdist_up") == up)
        for rank, (command, fate, _) in enumerate(FATES):
            deaths = caplog.text.count("is dead")
            stdin = ranks[rank].stdin
            assert stdin is not None
            stdin.write(f"{command}\n")
            stdin.flush()
            own.turn_until(lambda rank=rank, fate=fate: f"rank {rank} {fate}" in caplog.messages)
            if command.endswith("0"):
                del up[rank]
            else:
                up[rank] = 0.0
            own.turn_until(lambda: own.shown("torchdist_up") == up)  # which may come a turn after the line
            assert (caplog.text.count("is dead") > deaths) == fate.startswith("is dead")
    lives = [rank["life"] for rank in ask(base, "--json").document["ranks"]]
    assert lives == [*(life for *_, life in FATES), "running"]
