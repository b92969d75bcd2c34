"""Counts what is reported of healthy jobs, in simulated time."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from otel_torchdist.stall.detector import LOOK_S
from otel_torchdist.stall.events import Event, MismatchFound, Occasion, StragglerFound, VerdictGiven
from tests.faults.habits import HABITS, Habit
from tests.faults.simulated_job import SimulatedJob, Watched

STEPS_OF_A_JOB = 1_500
MAX_RANKS = 6
STEP_S = (1.0, 6.0)
"""A step takes between these."""


@dataclass
class Tally:
    """What was reported of the jobs of one habit.

    Attributes:
        name: The habit's.
        seconds: Simulated time for which the jobs were watched.
        steps: Their steps.
        looked: Looks that were really made.
        stalls: False ones, as `seed: what was reported`.
        findings: Likewise.
        once: Long pauses without a word, the first of their kind in a job, which are reported as the README says.
    """

    name: str
    seconds: float = 0.0
    steps: int = 0
    looked: int = 0
    stalls: list[str] = field(default_factory=list[str])
    findings: list[str] = field(default_factory=list[str])
    once: int = 0

    @property
    def looks(self) -> int:
        """Looks that a watch would have made in that time."""
        return round(self.seconds / LOOK_S)

    def add(self, other: Tally) -> None:
        """Count another one's jobs too."""
        self.seconds += other.seconds
        self.steps += other.steps
        self.looked += other.looked
        self.stalls += other.stalls
        self.findings += other.findings
        self.once += other.once

    def count(self, seed: int, habit: Habit, events: Iterable[tuple[float, Event]]) -> None:
        """Count what was reported of a job."""
        may_report = habit.is_reported_once
        for at_s, event in events:
            if isinstance(event, VerdictGiven) and event.occasion is Occasion.OPENED:
                verdict = event.verdict
                if may_report and verdict.ranks == (0,):
                    may_report = False
                    self.once += 1
                else:
                    self.stalls.append(f"seed {seed}, {at_s:.0f} s: {verdict.kind.value} {verdict.ranks}")
            elif isinstance(event, MismatchFound):
                self.findings.append(f"seed {seed}, {at_s:.0f} s: mismatched {event.mismatch.ranks}")
            elif isinstance(event, StragglerFound):
                self.findings.append(f"seed {seed}, {at_s:.0f} s: straggler {event.straggler.rank}")


def run_job(seed: int, steps: int = STEPS_OF_A_JOB) -> Tally:
    """Run the job of a seed; its habit is one of all in turn."""
    habit = HABITS[seed % len(HABITS)]
    tally = Tally(habit.name)
    watched = watch_job(seed, habit, steps)
    tally.seconds, tally.steps, tally.looked = watched.seconds, watched.steps, watched.looked
    tally.count(seed, habit, watched.events)
    return tally


def watch_job(seed: int, habit: Habit, steps: int, every_look: bool = False) -> Watched:
    """Run a job to its end; `every_look` as for `SimulatedJob`."""
    chance = random.Random(seed)
    step_s = chance.uniform(*STEP_S)
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-healthy-", dir="/dev/shm") as folder:
        size = chance.randrange(2, MAX_RANKS + 1)
        job = SimulatedJob(Path(folder), habit.of(seed, step_s), size, seed, every_look)
        try:
            while habit.happens is not None and job.watched.steps < steps:
                job.until(job.watched.steps + max(1, round(chance.expovariate(1 / habit.steps))))
                job.run_for(chance.uniform(0, step_s))  # at any moment of a step
                habit.happens(job, chance)
            return job.until(steps)
        finally:
            job.close()


def run_jobs(jobs: int, processes: int = 2) -> list[Tally]:
    """Run many jobs; returns what was counted for each habit."""
    tallies = {habit.name: Tally(habit.name) for habit in HABITS}
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for tally in pool.map(run_job, range(jobs)):
            tallies[tally.name].add(tally)
    return list(tallies.values())
