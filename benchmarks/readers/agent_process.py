"""The agent process of a job, in a benchmark: its processor time, its metrics and its end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from otel_torchdist.show.serving.scrape_target import ScrapeTarget
from otel_torchdist.telemetry.semconv import RENDEZVOUS

START_S: Final = 60.0
END_S: Final = 10.0
READ_S: Final = 60.0
"""Longest time until an agent has counted all records, in seconds; other processes may use the cores."""
_LOOK_S: Final = 0.05
_PROC: Final = Path("/proc")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class AgentProcess:
    """An agent started by a rank, with its child processes."""

    def __init__(self, job: Path) -> None:
        """Wait until the agent serves `/metrics` and has outlived a second one, which ranks start if it starts slowly.

        Raises:
            RuntimeError: No such agent comes up.
        """
        deadline = time.monotonic() + START_S
        while not (target := ScrapeTarget(job).last_target()) or len(sessions := _sessions(job)) != 1:
            if time.monotonic() > deadline:
                raise RuntimeError("the agent does not serve its metrics")
            time.sleep(_LOOK_S)
        self._url = f"http://{target}/metrics"
        [self._session] = sessions

    def stay_on(self, cores: set[int]) -> None:
        """Bind all threads of the agent to these cores."""
        for pid, session, _ in _processes():
            if session == self._session:
                for task in _PROC.joinpath(str(pid), "task").iterdir():
                    with contextlib.suppress(OSError):  # the thread has just ended
                        os.sched_setaffinity(int(task.name), cores)

    def processor_s(self) -> float:
        """Return the processor time of the agent and its children so far."""
        return sum(used for _, session, used in _processes() if session == self._session)

    def scrape(self) -> str:
        """Return the page that Prometheus scrapes."""
        with urlopen(self._url, timeout=END_S) as answer:
            return answer.read().decode()

    def end(self) -> None:
        """Wait for the end of the agent, whose ranks have ended; kill it if it takes too long."""
        deadline = time.monotonic() + END_S
        while pids := [pid for pid, session, _ in _processes() if session == self._session]:
            if time.monotonic() > deadline:
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(_LOOK_S)


def sum_of(page: str, metric: str) -> int:
    """Return the sum of a counter over all labels, except rendezvous, which are no operations."""
    found = re.findall(rf"^{metric}(\{{.*\}})? (\S+)$", page, re.MULTILINE)
    return sum(round(float(value)) for labels, value in found if f'"{RENDEZVOUS}"' not in labels)


def _processes() -> Iterator[tuple[int, int, float]]:
    """Yield id, session and processor time in seconds of every live process."""
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # the process has just ended
                state, _, _, session, *fields = (entry / "stat").read_text().rpartition(") ")[2].split()
                if state != "Z":
                    # user and system time of the process and of its reaped children
                    yield int(entry.name), int(session), sum(map(int, fields[7:11])) / _TICKS_PER_S


def _sessions(job: Path) -> set[int]:
    """Return the sessions of a job's agents."""
    return {session for pid, session, _ in _processes() if str(job).encode() in _command(pid)}


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return (_PROC / str(pid) / "cmdline").read_bytes()
    return b""
