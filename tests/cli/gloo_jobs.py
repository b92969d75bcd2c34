"""Jobs of real ranks on gloo, forked from an interpreter that has imported torch."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
from pathlib import Path

from tests.support.launch.quiet import QUIET
from tests.support.launch.warm_python import Done, WarmPython
from tests.support.waiting import until

WORKER = Path(__file__).parent / "workers" / "training.py"
LOADING_LINE = next(n for n, line in enumerate(WORKER.read_text().splitlines(), 1) if "os.read" in line)
CALLING_LINE = next(n for n, line in enumerate(WORKER.read_text().splitlines(), 1) if "all_reduce" in line)
THRESHOLD_S = 1.0
LIVES_S = 900.0
"""A job may last as long as the tests of a module, on a loaded machine, too."""
ENDS_S = 30.0
"""How long it may take to end by itself after these."""

_ports = itertools.count(1)


class GlooJobs:
    """One or more jobs of the same kind at the same time.

    Attributes:
        done: Their processes, once all have ended, the first job's first.
    """

    def __init__(
        self,
        python: WarmPython,
        base: Path,
        folder: Path,
        deed: str,
        *,
        ranks: int = 4,
        jobs: int = 1,
        reader: str,
        environ: dict[str, str] | None = None,
        worker: Path = WORKER,
    ) -> None:
        """Start the jobs.

        Args:
            python: Runs nothing else meanwhile.
            base: Their base directory for tapes.
            folder: Directory for other files that they need.
            deed: What one rank of each job does; see the worker.
            ranks: Ranks of each job.
            jobs: Number of jobs.
            reader: Where tapes are read: `agent`, `thread` or `none`.
            environ: Additions to their environment.
            worker: What each rank runs.
        """
        self.done: list[Done] = []
        self._folder = folder
        self._gate = folder / "gate"
        self._gate.touch()
        os.mkfifo(folder / "gate.pipe")
        self._pipe = os.open(folder / "gate.pipe", os.O_RDWR)  # holds the byte for a rank that reads late
        self._pids = folder / "pids"
        self._pids.mkdir()
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
        environs = []
        for job in range(jobs):
            # Job directories are named by the address; nothing listens there, for the store is a file.
            place = {"MASTER_PORT": str(next(_ports)), "STORE": str(folder / f"store-{job}")}
            environs += [{**common, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
        self._size = len(environs)
        arguments = [deed, str(self._gate), str(self._pids)]
        self._thread = threading.Thread(
            target=lambda: self.done.extend(python.run(worker, environs, folder, arguments, timeout_s=LIVES_S))
        )
        self._thread.start()

    def open_gate(self) -> None:
        """Let the late ranks go on."""
        self._gate.unlink(missing_ok=True)
        os.write(self._pipe, b"x")

    def kill(self) -> None:
        """Kill all ranks of the only job at once."""
        until(self.all_are_there)
        self._kill_known()
        self.join()

    def _kill_known(self) -> None:
        """Stop all before the first is killed: none lives to see another one's end."""
        texts = [path.read_text() for path in self._pids.iterdir()]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for text in texts:
                with contextlib.suppress(ProcessLookupError):  # the one that has killed itself
                    if text.endswith("\n"):
                        os.kill(int(text), number)

    def pid_of(self, rank: int) -> int:
        """The process id of a rank of the only job, once all are there."""
        until(self.all_are_there)
        return int((self._pids / str(rank)).read_text())

    def all_are_there(self) -> bool:
        """Whether all ranks have left their process ids."""
        return sum(path.read_text().endswith("\n") for path in self._pids.iterdir()) == self._size

    def join(self) -> list[Done]:
        """Wait until all have ended."""
        self._thread.join(100)
        return self.done

    def close(self) -> None:
        """Let late ranks go on, and kill what is left after that."""
        self.open_gate()
        self._thread.join(ENDS_S)
        if self._thread.is_alive():
            self._kill_known()
        self.join()
        os.close(self._pipe)
