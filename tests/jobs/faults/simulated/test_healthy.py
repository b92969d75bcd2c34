"""Nothing is reported about healthy jobs, whatever their routines; the same watch finds faults in a job with them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from otel_torchdist.judge.stall.events import VerdictGiven
from otel_torchdist.judge.stall.findings.stragglers import ArrivalsCompared
from otel_torchdist.model.reports.finding import Finding, FindingKind
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.jobs.faults.simulated.healthy import Tally, run_job, watch_job
from tests.jobs.faults.simulated.larger_routines import LARGER_ROUTINES
from tests.jobs.faults.simulated.routines import COMPILATION, ROUTINES, Jitter, Routine, Steps, everybody, logs
from tests.jobs.faults.simulated.simulated_job import SimulatedJob, Watched
from tests.jobs.faults.simulated.simulated_rank import STEP, Compute, Meet, Start

STEPS = 300
"""`make faults` uses up to 1,500."""


@pytest.mark.parametrize("nth", [0, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("routine", [one for one in ROUTINES if one is not COMPILATION], ids=lambda one: one.name)
def test_routines(routine: Routine, nth: int) -> None:
    """In jobs with each routine nothing false is reported, from their beginning to their end."""
    tally = run_job(ROUTINES.index(routine) + nth * len(ROUTINES), STEPS, routine)
    assert (tally.stalls, tally.findings) == ([], [])
    assert tally.steps >= STEPS
    assert tally.looks > tally.looked > 2


@pytest.mark.thorough
@pytest.mark.parametrize("routine", LARGER_ROUTINES, ids=lambda routine: routine.name)
def test_larger_routines(routine: Routine) -> None:
    """In a larger job nothing false is reported either, from its beginning to what the routine is known for."""
    tally = Tally(routine.name)
    watched = watch_job(1, routine, 340)
    tally.count(1, routine, watched.events)
    assert (tally.stalls, tally.findings) == ([], [])
    assert watched.steps >= 100
    assert watched.looked > 4


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["announced evaluation by rank 0", "long checkpoint by rank 0", "compilation", "suspension"]
)
def test_checks_that_are_left_out(name: str) -> None:
    """A watch that polls four times a second reports exactly the same, at the same time."""
    seed = next(seed for seed, routine in enumerate(ROUTINES) if routine.name == name)
    some, every = (watch_job(seed, ROUTINES[seed], 210, every_check) for every_check in (False, True))
    assert summary(some) == summary(every)
    assert every.looked > 2 * some.looked


def summary(watched: Watched) -> Counter[tuple[int, str]]:
    """What was reported in which second, and of how many calls the arrivals were compared in total."""
    found: Counter[tuple[int, str]] = Counter()
    for at_s, event in watched.events:
        if isinstance(event, ArrivalsCompared):
            found[0, "calls"] += sum(lateness.calls for lateness in event.lateness)
        else:
            found[round(at_s), type(event).__name__] += 1
    return found


def one_late(dice: Jitter, rank: int, size: int) -> Steps:
    """The others wait for rank 1 during nearly all of a step."""
    while True:
        yield Compute(5.0 if rank == 1 else 0.5)
        yield Meet(everybody(size))
        yield STEP


@pytest.mark.parametrize("waited_s", [0.7, 2.0, 4.0])
def test_suspension_in_a_wait(tmp_path: Path, waited_s: float) -> None:
    """A job that is suspended for an hour while ranks wait continues without a verdict."""
    job = SimulatedJob(tmp_path, Routine("one late", one_late).of(1, 1.0), 2, 1)
    try:
        job.until(20)
        job.run_for(waited_s)
        job.suspend(3_600)
        watched = job.until(30)
    finally:
        job.close()
    assert [event for _, event in watched.events if isinstance(event, VerdictGiven)] == []
    assert watched.looked > 2


def late_once(dice: Jitter, rank: int, size: int) -> Steps:
    """Rank 1 enters its hundredth step a minute late."""
    for step in range(200):
        yield dice.compute()
        if (rank, step) == (1, 100):
            yield Compute(60.0)
        yield Meet(everybody(size))
        yield STEP


def late_always(dice: Jitter, rank: int, size: int) -> Steps:
    """Rank 1 takes a third longer for each step."""
    while True:
        yield dice.compute(4 / 3 if rank == 1 else 1.0, 0.01)
        yield Meet(everybody(size))
        yield STEP


def test_rank_that_is_late() -> None:
    """A late rank is reported as absent, once, during its pause."""
    watched = watch_job(3, Routine("late once", late_once), 200)
    [(at_s, given)] = [(at_s, event) for at_s, event in watched.events if isinstance(event, VerdictGiven)][:1]
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.ABSENT, (1,))
    tally = Tally("late once")
    tally.count(3, Routine("late once", late_once), watched.events)
    assert len(tally.stalls) == 1
    assert 0 < at_s < watched.seconds


def test_rank_that_is_slow() -> None:
    """A straggler is found too, and counts as a finding."""
    routine = Routine("late always", late_always)
    watched = watch_job(3, routine, 400)
    [found] = [event for _, event in watched.events if isinstance(event, Finding)]
    assert (found.kind, found.ranks) == (FindingKind.STRAGGLER, (1,))
    tally = Tally(routine.name)
    tally.count(3, routine, watched.events)
    assert (tally.stalls, len(tally.findings)) == ([], 1)


def sharing(dice: Jitter, rank: int, size: int) -> Steps:
    """A thread logs in the group in which the main thread trains."""
    yield Start(logs(dice.another(), everybody(size)), "log")
    while True:
        yield dice.compute()
        yield Meet(everybody(size))
        yield STEP


def test_threads_that_share_a_group() -> None:
    """Nothing stalls, since all calls are alike; that two threads share a group is found all the same, once."""
    routine = Routine("sharing", sharing)
    watched = watch_job(3, routine, 100)
    tally = Tally(routine.name)
    tally.count(3, routine, watched.events)
    assert (tally.stalls, len(tally.findings)) == ([], 1)
    assert "shared_group" in tally.findings[0]


def test_pause_that_is_documented() -> None:
    """A documented long pause of rank 0 is counted separately, and once; an undocumented one is a false stall."""
    [routine] = [routine for routine in ROUTINES if routine.reported]
    seed = ROUTINES.index(routine)
    assert run_job(seed, STEPS, routine).once == 1
    tally = Tally(routine.name)
    tally.count(seed, dataclasses.replace(routine, reported=0), watch_job(seed, routine, STEPS).events)
    assert (tally.once, len(tally.stalls)) == (0, 1)


def test_announcement_in_a_suspended_job() -> None:
    """Time for which a job was suspended does not use up what rank 0 has announced: it needs the rest afterwards."""
    [routine] = [one for one in LARGER_ROUTINES if one.name == "suspension and announced evaluation"]
    tally = run_job(509, routine=routine)
    assert tally.seconds > 7_200
    assert tally.stalls == []
