"""Jobs without our instrumentation, each with a fault, and the dumps of gloo's flight recorder that they leave."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.launch.quiet import QUIET
from tests.support.launch.warm_python import WarmJob, WarmPython
from tests.support.waiting import until

WORKER = Path(__file__).parent / "workers" / "recorded.py"
DUMPED_S = 60.0


@dataclass(frozen=True)
class RecordedFault:
    """A fault, and what its dumps must show.

    Attributes:
        name: Name of the fault in the worker.
        verdict: The expected verdict; '' for none.
        ranks: The ranks that verdicts must name.
        faulty: The ranks that are at fault.
        silent: Ranks that write no dump.
        size: Ranks of the job.
    """

    name: str
    verdict: str
    ranks: tuple[int, ...]
    faulty: tuple[int, ...]
    silent: tuple[int, ...] = ()
    size: int = 3

    @property
    def is_named(self) -> bool:
        """Whether all ranks at fault are named, by a verdict or as ranks without a dump, and no others."""
        return {*self.ranks, *self.silent} == {*self.faulty}


class RecordedJobs:
    """Jobs that run at the same time until all ranks that can have written their dumps."""

    def __init__(self, python: WarmPython, folder: Path, faults: Sequence[RecordedFault]) -> None:
        """Start the jobs; their dumps lie in `folder/<fault>/dumps`."""
        self._folder = folder
        self._jobs = [self._start(python, fault) for fault in faults]
        self._faults = faults

    def _start(self, python: WarmPython, fault: RecordedFault) -> WarmJob:
        folder = self._folder / fault.name
        for name in ("dumps/as_json", "pids"):
            (folder / name).mkdir(parents=True)
        (folder / "gate").touch()
        environ = {
            **QUIET,
            "OTEL_PYTHON_TORCHDIST_ENABLED": "false",
            "TORCH_FR_BUFFER_SIZE": "2000",  # 0 for gloo by default in torch 2.8
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "STORE": f"file://{folder}/store",
            "DUMPS": f"{folder}/dumps",
            "GOOD_STEPS": "5",
            "WORLD_SIZE": str(fault.size),
        }
        environs = [{**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(fault.size)]
        arguments = [fault.name, str(folder / "gate"), str(folder / "pids")]
        return python.start(WORKER, environs, folder, arguments, timeout_s=120)

    def wait_for_dumps(self) -> None:
        """Wait until all ranks that can have written their dumps."""
        until(lambda: not self._missing(), DUMPED_S, lambda: f"no dumps of {self._missing()}")

    def _missing(self) -> list[str]:
        return [fault.name for fault in self._faults if not self._is_dumped(fault)]

    def _is_dumped(self, fault: RecordedFault) -> bool:
        dumps = [*(self._folder / fault.name / "dumps").glob("rank_*")]
        return len(dumps) == fault.size - len(fault.silent)

    def kill(self) -> None:
        """Kill all ranks, and what they have started."""
        for job in self._jobs:
            for pid in job.pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for pid in self._folder.glob("*/pids/child of *"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGKILL)
        for job in self._jobs:
            job.wait(60)
