"""Jobs of real ranks on gloo, forked from an interpreter that has imported torch."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Final

from tests.support.commands.asking import ask
from tests.support.launch.quiet import QUIET
from tests.support.launch.warm_python import Done, WarmPython
from tests.support.waiting import until

WORKERS: Final = Path(__file__).parent / "workers"
WORKER: Final = WORKERS / "training.py"
LOADING_LINE: Final = next(n for n, line in enumerate(WORKER.read_text().splitlines(), 1) if "os.read" in line)
CALLING_LINE: Final = next(n for n, line in enumerate(WORKER.read_text().splitlines(), 1) if "all_reduce" in line)
COUNTING: Final = WORKERS / "counting.py"
COUNTED_STEPS, COUNTED_LATE_NS = 10, 100_000_000
"""Constants of the worker."""
THRESHOLD_S: Final = 1.0
LIVES_S: Final = 900.0
"""A job may last as long as all tests of a module, even on a loaded machine."""
ENDS_S: Final = 30.0
"""Time for a job to end by itself after the tests."""

_ports = itertools.count(1)


def await_signs_of_life(base: Path) -> None:
    """Wait for a new sign of life of all waiting ranks. The verdict on killed ranks depends on their last one."""
    begun = time.monotonic()

    def have_come() -> bool:
        passed_s = time.monotonic() - begun
        ranks = ask(base, "--json").document["ranks"]
        return all(one["silent_s"] < passed_s for one in ranks if one["open"] and one["life"] == "running")

    until(have_come)


class GlooJobs:
    """One or more jobs of the same kind at the same time.

    Attributes:
        base: Base directory of their tapes.
        folder: Folder for their other files.
        pids: The process ids of their ranks, the first job's first.
        done: Their processes, after all have ended.
    """

    def __init__(
        self,
        python: WarmPython,
        base: Path,
        folder: Path,
        deed: str,
        *more: str,
        ranks: int = 4,
        jobs: int = 1,
        reader: str = "none",
        environ: Mapping[str, str] | None = None,
        worker: Path = WORKER,
    ) -> None:
        """Start the jobs.

        Args:
            python: Interpreter that forks their processes.
            base: Base directory of their tapes.
            folder: An empty folder for other files.
            deed: Action of the worker.
            *more: Further arguments of the worker.
            ranks: Number of ranks of each job.
            jobs: Number of jobs.
            reader: Reader of their tapes.
            environ: Additions to their environment.
            worker: Program of each rank.
        """
        self.base = base
        self.done: list[Done] = []
        self.folder = folder
        self._gate, self._there = folder / "gate", folder / "pids"
        self._there.mkdir(parents=True)
        self._gate.touch()
        os.mkfifo(folder / "gate.pipe")
        self._pipe = os.open(folder / "gate.pipe", os.O_RDWR)  # holds the byte for a rank that reads late
        common = {
            **QUIET,
            "GLOO_SOCKET_IFNAME": "lo",
            "OTEL_PYTHON_TORCHDIST_READER": reader,
            "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": str(int(THRESHOLD_S * 1000)),
            "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(base),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            **(environ or {}),
        }
        environs: list[dict[str, str]] = []
        for job in range(jobs):
            # Job directories are named by the address; nothing listens there, for the store is a file.
            place = {"MASTER_PORT": str(next(_ports)), "STORE": f"file://{folder}/store-{job}"}
            environs += [{**common, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
        arguments = [deed, str(self._gate), str(self._there), *more]
        self._job = python.start(worker, environs, folder, arguments, timeout_s=LIVES_S)
        self.pids = self._job.pids

    def open_gate(self) -> None:
        """Let late ranks continue."""
        self._gate.unlink(missing_ok=True)
        os.write(self._pipe, b"x")

    def all_are_there(self) -> bool:
        """Whether all ranks have left their process ids."""
        return sum(path.read_text().endswith("\n") for path in self._there.iterdir()) == len(self.pids)

    def await_verdict(self) -> None:
        """Wait until all ranks are there, and a diagnosis has a verdict."""
        until(self.all_are_there)
        until(lambda: ask(self.base, "--json").document["verdict"] is not None)

    def have_reached_the_fault(self) -> bool:
        """Whether all ranks of the worker with faults are at its step."""
        return all((self.folder / f"reached {rank}").exists() for rank in range(len(self.pids)))

    def pid_of(self, rank: int) -> int:
        """The process id of a rank of the only job, once all are there."""
        until(self.all_are_there)
        return self.pids[rank]

    def kill(self) -> None:
        """Kill all ranks of the only job at once, once all are there."""
        until(self.all_are_there)
        self._kill_now()
        self.join()

    def _kill_now(self) -> None:
        """Stop all ranks before the first is killed, so that no rank observes the end of another."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in self.pids:
                with contextlib.suppress(ProcessLookupError):  # it has killed itself
                    os.kill(pid, number)

    def join(self, timeout_s: float = 100.0) -> list[Done]:
        """Wait until all have ended."""
        if not self.done:
            self.done.extend(self._job.wait(timeout_s))
        return self.done

    def close(self, ends_s: float = ENDS_S) -> None:
        """Let late ranks continue, and kill ranks that do not end."""
        self.open_gate()
        try:
            self.join(ends_s)
        except FutureTimeoutError:
            self._kill_now()
            self.join()
        os.close(self._pipe)
