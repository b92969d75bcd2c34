"""Nothing is reported about ranks that compile, all together or one alone, nor about ranks that have just finished."""

from __future__ import annotations

from otel_torchdist.judge.stall.events import VerdictGiven
from tests.jobs.faults.simulated.healthy import Tally, run_job, watch_job
from tests.jobs.faults.simulated.routines import COMPILATION, ROUTINES

STEPS = 300


def test_compilation() -> None:
    """In four jobs whose ranks compile for minutes, each for a time of its own, nothing false is reported."""
    tally = Tally(COMPILATION.name)
    first = ROUTINES.index(COMPILATION)
    for seed in range(first, first + 4 * len(ROUTINES), len(ROUTINES)):
        tally.add(run_job(seed, STEPS, COMPILATION))
    assert (tally.stalls, tally.findings) == ([], [])
    assert tally.steps >= 4 * STEPS


def test_finished_just_before_they_are_looked_at() -> None:
    """Two of five ranks compiled for half of the threshold, in which others waited; their steps take the rest."""
    watched = watch_job(177, COMPILATION, 5)
    assert [event for _, event in watched.events if isinstance(event, VerdictGiven)] == []
    assert watched.steps == 5
    assert watched.looked > 4
