"""A job whose ranks are processes with real tapes, without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.ranks.rank_process import RUN

RANK_PROCESS = Path(__file__).with_name("rank_process.py")


class Ranks:
    """The ranks of one job, each a process that obeys commands; see `tests.support.ranks.rank_process`."""

    def __init__(self, directory: Path, size: int, capacity: int = 64, run: int = RUN) -> None:
        """Start the ranks.

        Args:
            directory: Their job directory, which is created if an earlier run has not done so.
            size: Number of ranks.
            capacity: Records in a tape's ring.
            run: The run's id.
        """
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._size = size
        self._capacity = capacity
        self._run = run
        self._processes = {rank: self._launch(rank) for rank in range(size)}
        self._killed: list[subprocess.Popen[str]] = []
        for rank in range(size):
            self._acknowledged(rank)

    def _launch(self, rank: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, RANK_PROCESS, self._directory, *map(str, (rank, self._size, self._capacity, self._run))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, rank: int, command: str) -> None:
        """Make a rank do something, and wait until it acknowledges."""
        self._write(rank, command)
        self._acknowledged(rank)

    def meet(self, sequence: int) -> None:
        """Make all ranks complete an operation."""
        for rank in self._processes:
            self.send(rank, f"enter {sequence}")
        for rank in self._processes:
            self.send(rank, "end")

    def exit(self) -> None:
        """End all ranks cleanly."""
        for rank, process in self._processes.items():
            if process.poll() is None:
                self._write(rank, "exit")
        for process in self._processes.values():
            process.wait(60)

    def leave(self, rank: int, code: int) -> None:
        """Make a rank exit, bypassing every handler."""
        self._write(rank, f"leave {code}")
        self._processes[rank].wait(60)

    def signal(self, rank: int, number: int) -> None:
        """Send a rank a signal."""
        self._processes[rank].send_signal(number)

    def go_on(self, rank: int) -> None:
        """End the `load` of a rank."""
        self._write(rank, "")

    def kill(self, rank: int) -> None:
        """Kill a rank."""
        self._processes[rank].kill()
        self._processes[rank].wait(60)

    def start_again(self, rank: int) -> None:
        """Restart a rank that was killed, as a launcher does."""
        self._killed.append(self._processes[rank])
        self._processes[rank] = self._launch(rank)
        self._acknowledged(rank)

    def close(self) -> None:
        """End the remaining ranks."""
        for process in [*self._processes.values(), *self._killed]:
            process.kill()
            process.wait(60)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _write(self, rank: int, command: str) -> None:
        pipe = self._processes[rank].stdin
        assert pipe is not None
        pipe.write(f"{command}\n")
        pipe.flush()

    def _acknowledged(self, rank: int) -> None:
        pipe = self._processes[rank].stdout
        assert pipe is not None
        assert pipe.readline() == "ok\n"
