"""Jobs of real ranks on gloo that hang, each in its own way and all at the same time; then all are killed."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from otel_torchdist.naming import compress_ranks
from tests.jobs.faults.faulty_job import WORKER
from tests.jobs.faults.rows import ROWS
from tests.support.commands.asking import ask
from tests.support.launch.quiet import QUIET
from tests.support.launch.warm_python import WarmJob, WarmPython
from tests.support.waiting import until

HUNG_S: Final = 0.5
"""Age at which an operation counts as stalled; all hang for good."""
SHOWN_S: Final = HUNG_S + 1.5
_EXPECTED: Final = {row.name: (row.verdict, row.ranks) for row in ROWS if row.ranks}
_ports = itertools.count(1)


@dataclass(frozen=True)
class HungJob:
    """A job that hangs, or has been killed since.

    Attributes:
        base: Base directory of its tapes.
        pids: A file for each rank.
        ranks: How many there are.
        job: Its processes.
        expected: Kind of the verdict, and the ranks that it names.
    """

    base: Path
    pids: Path
    ranks: int
    job: WarmJob
    expected: tuple[str, str]

    def verdict(self) -> dict[str, Any] | None:
        """The verdict on its tapes."""
        return ask(self.base, "--json", threshold_s=HUNG_S).document["verdict"]

    def is_hung(self) -> bool:
        """Whether all ranks have reached the fault and the verdict is that of the fault: slow ranks cause others."""
        if not all(self.pids.with_name(f"reached {rank}").exists() for rank in range(self.ranks)):
            return False
        found = self.verdict()
        return found is not None and (found["kind"], compress_ranks(found["ranks"])) == self.expected

    def kill(self) -> None:
        """Kill all its ranks with SIGKILL, and stop them before that: none lives to see another one's end."""
        pids = [int(path.read_text()) for path in self.pids.iterdir()]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)


def show(_: Mapping[str, HungJob]) -> None:
    """Let a sign of life show the hang: of ranks that are dead, only that counts, and one comes each second."""
    time.sleep(SHOWN_S)


def hang(
    python: WarmPython,
    base: Path,
    folder: Path,
    faults: Sequence[tuple[str, int]],
    before_the_end: Callable[[Mapping[str, HungJob]], None] = show,
) -> dict[str, HungJob]:
    """Start jobs, wait until all hang, and kill them; returns them by fault.

    Args:
        python: Runs nothing else meanwhile.
        base: For tapes.
        folder: For other files.
        faults: Names of faults in the worker, each with a number of ranks.
        before_the_end: What happens once all hang, before they are killed.
    """
    jobs = {fault: _start(python, base / fault, folder / fault, fault, ranks) for fault, ranks in faults}
    try:
        for fault, job in jobs.items():
            until(job.is_hung, 100, f"{fault} does not hang")
        before_the_end(jobs)
    finally:
        for job in jobs.values():
            job.kill()
    for job in jobs.values():
        job.job.wait(60)
    return jobs


def _start(python: WarmPython, base: Path, folder: Path, fault: str, ranks: int) -> HungJob:
    base.mkdir(mode=0o700)
    pids = folder / "pids"
    pids.mkdir(parents=True)
    (folder / "gate").touch()
    common = {
        **QUIET,
        "GLOO_SOCKET_IFNAME": "lo",
        "GOOD_STEPS": "3",
        "LATE_S": "100",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(next(_ports)),  # names the job; nothing listens there, because the store is a file
        "OTEL_PYTHON_TORCHDIST_READER": "none",
        "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(base),
        "STORE": f"file://{folder}/store",
        "WORLD_SIZE": str(ranks),
    }
    environs = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    job = python.start(WORKER, environs, folder, [fault, str(folder / "gate"), str(pids)], timeout_s=150)
    return HungJob(base, pids, ranks, job, _EXPECTED[fault])
