"""Nothing is reported of ranks that compile, all together or one alone, nor of those that have just finished."""

from __future__ import annotations

from tests.faults.habits import COMPILATION, HABITS
from tests.faults.healthy import Tally, run_job

STEPS = 300


def test_compilation() -> None:
    """Of four jobs in which ranks compile for minutes, each for as long as it takes, nothing false is reported."""
    tally = Tally(COMPILATION.name)
    first = HABITS.index(COMPILATION)
    for seed in range(first, first + 4 * len(HABITS), len(HABITS)):
        tally.add(run_job(seed, STEPS))
    assert (tally.stalls, tally.findings) == ([], [])
    assert tally.steps >= 4 * STEPS
