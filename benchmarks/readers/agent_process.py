"""The agent of a job, as seen by a benchmark: its processor time, and its end."""

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
"""How long an agent may take to count what has been recorded; others may use the cores."""
_LOOK_S: Final = 0.05
_PROC: Final = Path("/proc")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class AgentProcess:
    """An agent that a rank has started, with the processes that it has started itself."""

    def __init__(self, job: Path) -> None:
        """Wait until it serves `/metrics`, and has outlived a second one, which ranks start if it starts slowly.

        Raises:
            RuntimeError: It does not.
        """
        deadline = time.monotonic() + START_S
        while not (target := ScrapeTarget(job).last_target()) or len(sessions := _sessions(job)) != 1:
            if time.monotonic() > deadline:
                raise RuntimeError("the agent does not serve its metrics")
            time.sleep(_LOOK_S)
        self._url = f"http://{target}/metrics"
        [self._session] = sessions

    def stay_on(self, cores: set[int]) -> None:
        """Bind all its threads to some cores."""
        for pid, session, _ in _processes():
            if session == self._session:
                for task in _PROC.joinpath(str(pid), "task").iterdir():
                    with contextlib.suppress(OSError):  # the thread has just ended
                        os.sched_setaffinity(int(task.name), cores)

    def processor_s(self) -> float:
        """Its processor time so far, with that of its children."""
        return sum(used for _, session, used in _processes() if session == self._session)

    def scrape(self) -> str:
        """The page that Prometheus reads."""
        with urlopen(self._url, timeout=END_S) as answer:
            return answer.read().decode()

    def end(self) -> None:
        """Wait until it has ended, for its ranks have; end it if it takes too long."""
        deadline = time.monotonic() + END_S
        while pids := [pid for pid, session, _ in _processes() if session == self._session]:
            if time.monotonic() > deadline:
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(_LOOK_S)


def sum_of(page: str, metric: str) -> int:
    """The sum of a counter on a page of metrics, over all its labels, rendezvous excepted: they are no operations."""
    found = re.findall(rf"^{metric}(\{{.*\}})? (\S+)$", page, re.MULTILINE)
    return sum(round(float(value)) for labels, value in found if f'"{RENDEZVOUS}"' not in labels)


def _processes() -> Iterator[tuple[int, int, float]]:
    """Id, session and processor time in seconds of every process that has not ended."""
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has just ended
                state, _, _, session, *fields = (entry / "stat").read_text().rpartition(") ")[2].split()
                if state != "Z":
                    # user and system time, its own and of the children that it has waited for
                    yield int(entry.name), int(session), sum(map(int, fields[7:11])) / _TICKS_PER_S


def _sessions(job: Path) -> set[int]:
    """The sessions of the agents of a job."""
    return {session for pid, session, _ in _processes() if str(job).encode() in _command(pid)}


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return (_PROC / str(pid) / "cmdline").read_bytes()
    return b""
