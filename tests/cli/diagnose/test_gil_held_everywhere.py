"""`diagnose` on a job in which native code holds every rank's GIL: heartbeats stop, but nothing is suspended."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands.asking import ask
from tests.support.commands.running import Running
from tests.support.ranks.job_ranks import Ranks
from tests.support.waiting import until

pytestmark = pytest.mark.thorough
THRESHOLD_S = 2.0
SIZE = 3


@pytest.fixture
def directory(base: Path) -> Path:
    """The directory of a job."""
    return base / "job-000000000000000a"


@pytest.fixture
def ranks(directory: Path, start: Callable[..., Running]) -> Iterator[Ranks]:
    """A job in which ranks 0 and 1 wait for rank 2, with an agent, which records how they end."""
    ranks = Ranks(directory, SIZE)
    start("agent", environ={"OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "2000", "OTEL_TRACES_EXPORTER": "none"}).wait_for(
        "found ranks 0-2 of 3"
    )
    for rank in (0, 1):
        ranks.send(rank, "enter 1")
    yield ranks
    ranks.close()


def document(base: Path) -> dict[str, Any]:
    """The output of `diagnose --json`."""
    return ask(base, "--json", threshold_s=THRESHOLD_S).document


def all_are_silent(base: Path) -> bool:
    """Whether no rank has given a sign of life for longer than the threshold, by far."""
    return all(one["silent_s"] > THRESHOLD_S + 1.5 for one in document(base)["ranks"])


def kill(ranks: Ranks, directory: Path) -> None:
    """Kill all ranks, and wait until that is recorded."""
    for rank in range(SIZE):
        ranks.signal(rank, signal.SIGKILL)
    until(lambda: len(list(directory.glob("*.death"))) == SIZE)


def test_gil_is_held_in_every_rank(ranks: Ranks, base: Path, directory: Path) -> None:
    """The rank that is missing is named while they live, and after all were killed."""
    for rank in range(SIZE):
        ranks.send(rank, "hold")
    until(lambda: all_are_silent(base))
    living = document(base)["verdict"]
    assert (living["kind"], living["ranks"]) == ("absent", [2])
    kill(ranks, directory)
    dead = document(base)["verdict"]
    assert (dead["kind"], dead["ranks"]) == ("absent", [2])
    assert dead["hung_s"] >= THRESHOLD_S


def test_every_rank_is_stopped(ranks: Ranks, base: Path, directory: Path) -> None:
    """No rank of a suspended job is blamed, neither while it is suspended nor when it is then killed."""
    for rank in range(SIZE):
        ranks.signal(rank, signal.SIGSTOP)
    until(lambda: all_are_silent(base))
    assert document(base)["verdict"] is None
    kill(ranks, directory)
    assert document(base)["verdict"] is None
