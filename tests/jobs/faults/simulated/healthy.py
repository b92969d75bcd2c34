"""Counts what is reported about healthy jobs, in simulated time.

`make faults` runs a sample; `python -m tests.jobs.faults.simulated.healthy 1000 [FIRST_SEED]` watches a thousand hours.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from otel_torchdist.judge.stall.events import Event, Occasion, VerdictGiven
from otel_torchdist.judge.stall.watch import CHECK_S
from otel_torchdist.model.reports.finding import Finding
from tests.jobs.faults.simulated.larger_routines import LARGER_ROUTINES
from tests.jobs.faults.simulated.routines import ROUTINES, Routine
from tests.jobs.faults.simulated.simulated_job import SimulatedJob, Watched

STEPS_OF_A_JOB: Final = 1_500
"""Steps of a job; fewer with more than eight ranks."""
SECONDS_OF_A_JOB: Final = 3 * 3600
"""Limit for jobs with long steps."""
ALL_ROUTINES: Final = (*ROUTINES, *LARGER_ROUTINES)
REPORT_EVERY_S: Final = 60.0


@dataclass
class Tally:
    """What was reported about the jobs of one routine.

    Attributes:
        name: Name of the routine.
        seconds: Simulated time for which the jobs were watched.
        steps: Their steps.
        looked: Polls that were really made.
        stalls: False stalls, as `seed: what was reported`.
        findings: False findings, in the same form.
        once: Long unannounced pauses, the first of their kind in a job, which are reported as the README states.
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
        """Polls that a watch would have made in that time."""
        return round(self.seconds / CHECK_S)

    def add(self, other: Tally) -> None:
        """Add the counts of another tally."""
        self.seconds += other.seconds
        self.steps += other.steps
        self.looked += other.looked
        self.stalls += other.stalls
        self.findings += other.findings
        self.once += other.once

    def count(self, seed: int, routine: Routine, events: Iterable[tuple[float, Event]]) -> None:
        """Count what was reported about a job."""
        may_report = routine.reported
        for at_s, event in events:
            if isinstance(event, VerdictGiven) and event.occasion is Occasion.OPENED:
                verdict = event.verdict
                if may_report and verdict.ranks == (0,):
                    may_report -= 1
                    self.once += 1
                else:
                    self.stalls.append(f"seed {seed}, {at_s:.0f} s: {verdict.kind.value} {verdict.ranks}")
            elif isinstance(event, Finding):
                self.findings.append(f"seed {seed}, {at_s:.0f} s: {event.kind.value} {event.ranks}")


def run_job(seed: int, steps: int = STEPS_OF_A_JOB, routine: Routine | None = None) -> Tally:
    """Run the job of a seed; without a routine, the seed chooses one of all in turn."""
    routine = routine or ALL_ROUTINES[seed % len(ALL_ROUTINES)]
    tally = Tally(routine.name)
    watched = watch_job(seed, routine, steps)
    tally.seconds, tally.steps, tally.looked = watched.seconds, watched.steps, watched.looked
    tally.count(seed, routine, watched.events)
    return tally


def watch_job(seed: int, routine: Routine, steps: int, every_check: bool = False) -> Watched:
    """Run a job to its end; `every_check` as for `SimulatedJob`."""
    chance = random.Random(seed)
    step_s = chance.uniform(*routine.step_s)
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-healthy-", dir="/dev/shm") as folder:
        size = chance.choice(routine.sizes)
        steps = min(steps, max(100, steps * 8 // size))
        job = SimulatedJob(Path(folder), routine.of(seed, step_s), size, seed, every_check)
        try:
            while routine.happens is not None and job.watched.steps < steps and job.watched.seconds < SECONDS_OF_A_JOB:
                job.until(job.watched.steps + max(1, round(chance.expovariate(1 / routine.steps))))
                job.run_for(chance.uniform(0, step_s))  # at any moment of a step
                routine.happens(job, chance)
            return job.until(steps, SECONDS_OF_A_JOB)
        finally:
            job.close()


def run_jobs(jobs: int, processes: int = 2) -> list[Tally]:
    """Run many jobs; returns what was counted for each routine."""
    tallies = {routine.name: Tally(routine.name) for routine in ALL_ROUTINES}
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for tally in pool.map(run_job, range(jobs)):
            tallies[tally.name].add(tally)
    return list(tallies.values())


def show(console: Console, tallies: Sequence[Tally]) -> Tally:
    """Print the counts and the false reports of each routine; returns the number of false reports."""
    table = Table("routine", "job hours", "steps", "looks", "of these made", "false stalls", "false findings", "once")
    total = Tally("all")
    for tally in tallies:
        total.add(tally)
    for tally in (*tallies, total):
        numbers = (tally.seconds / 3600, tally.steps, tally.looks, tally.looked)
        counts = (len(tally.stalls), len(tally.findings), tally.once)
        table.add_row(tally.name, *(f"{number:,.0f}" for number in numbers), *map(str, counts))
    console.print(table)
    console.print("looks that are not made could not have seen anything; once: long pauses without a word, see README")
    for text in (*total.stalls, *total.findings):
        console.print(text)
    return total


def main(hours: float, first_seed: int = 0) -> int:
    """Run jobs for a number of simulated hours, and print false reports at once; returns the exit code."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    tallies = {routine.name: Tally(routine.name) for routine in ALL_ROUTINES}
    watched_s, reported_s = 0.0, time.monotonic()
    for seed in count(first_seed):
        if watched_s >= hours * 3600:
            break
        tally = run_job(seed)
        tallies[tally.name].add(tally)
        watched_s += tally.seconds
        for text in (*tally.stalls, *tally.findings):
            console.print(f"{tally.name}: {text}")
        if time.monotonic() > reported_s + REPORT_EVERY_S:
            reported_s = time.monotonic()
            console.print(f"{watched_s / 3600:,.0f} of {hours:,.0f} h, seed {seed}")
    total = show(console, list(tallies.values()))
    return int(bool(total.stalls or total.findings))


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), *map(int, sys.argv[2:3])))
