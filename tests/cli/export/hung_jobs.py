"""Jobs of real ranks on gloo that hang, each in its own way and all at the same time; then all are killed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from otel_torchdist.model.text import compress_ranks
from tests.cli.gloo_jobs import GlooJobs, await_signs_of_life
from tests.jobs.faults.faulty_job import WORKER
from tests.jobs.faults.rows import ROWS
from tests.support.commands.asking import ask
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import environ_of
from tests.support.waiting import until

HUNG_S: Final = 0.5
"""Age at which an operation counts as stalled; all hang for good."""
_EXPECTED: Final = {row.name: (row.verdict, row.ranks) for row in ROWS if row.ranks}


@dataclass(frozen=True)
class HungJob:
    """A job that hangs, or has been killed since.

    Attributes:
        base: Base directory of its tapes.
        job: Its processes.
        expected: Kind of the verdict, and the ranks that it names.
    """

    base: Path
    job: GlooJobs
    expected: tuple[str, str]

    def verdict(self) -> dict[str, Any] | None:
        """The verdict on its tapes."""
        return ask(self.base, "--json", threshold_s=HUNG_S).document["verdict"]

    def is_hung(self) -> bool:
        """Whether all ranks have reached the fault and the verdict is that of the fault: slow ranks cause others."""
        if not self.job.have_reached_the_fault():
            return False
        found = self.verdict()
        return found is not None and (found["kind"], compress_ranks(found["ranks"])) == self.expected


def faulty(
    python: WarmPython, base: Path, folder: Path, fault: str, ranks: int, kernel: str = "python", **environ: str
) -> GlooJobs:
    """Start a job of the worker with faults, whose late ranks stay late."""
    base.mkdir(mode=0o700)
    waits = {"GOOD_STEPS": "3", "LATE_S": "100", **environ_of(kernel), **environ}
    return GlooJobs(python, base, folder, fault, ranks=ranks, environ=waits, worker=WORKER)


def show(jobs: Mapping[str, HungJob]) -> None:
    """Wait until signs of life show the hang."""
    for job in jobs.values():
        await_signs_of_life(job.base)


def hang(
    python: WarmPython,
    base: Path,
    folder: Path,
    faults: Sequence[tuple[str, int]],
    before_the_end: Callable[[Mapping[str, HungJob]], None] = show,
    kernel: str = "python",
) -> dict[str, HungJob]:
    """Start jobs, wait until all hang, and kill them; returns them by fault.

    Args:
        python: Interpreter that forks their processes.
        base: Base directory of tapes.
        folder: Folder for other files.
        faults: Names of faults in the worker, each with a number of ranks.
        before_the_end: Called once all jobs hang, before they are killed.
        kernel: The recording kernel, `python` or `native`.
    """
    jobs = {
        fault: HungJob(
            base / fault, faulty(python, base / fault, folder / fault, fault, ranks, kernel), _EXPECTED[fault]
        )
        for fault, ranks in faults
    }
    try:
        for fault, job in jobs.items():
            until(job.is_hung, 100, f"{fault} does not hang")
        before_the_end(jobs)
    finally:
        for job in jobs.values():
            job.job.kill()
            job.job.close()
    return jobs
