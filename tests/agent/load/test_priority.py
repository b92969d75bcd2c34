"""On a node whose cores are all busy the agent gives way to training, and still reports a stall in time."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_torchdist.agent.limits import NICE
from tests.support.commands.running import Running
from tests.support.ranks.job_ranks import Ranks
from tests.support.waiting import until

HERE = Path(__file__).parent
THRESHOLD_S = 2.0
PROMISE_S = 2.0
"""From the threshold to the verdict."""
BURN = "while True: pass"
CAP_SYS_NICE = 23
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
BURNERS = 2
"""For each core: as if two ranks computed there."""


class Burners:
    """Processes like those of training, which never rest, on every core."""

    def __init__(self) -> None:
        self._cores = len(os.sched_getaffinity(0))
        self._processes = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(BURNERS * self._cores)]
        self._began = time.monotonic()
        self._before_s = self._processor_s()

    def _processor_s(self) -> float:
        fields = [Path(f"/proc/{one.pid}/stat").read_text().rpartition(") ")[2].split() for one in self._processes]
        return sum(int(user) + int(system) for user, system in (one[11:13] for one in fields)) / TICKS_PER_S

    def measure(self) -> None:
        """Measure the share from now on."""
        self._began, self._before_s = time.monotonic(), self._processor_s()

    def share(self) -> float:
        """Which part of all cores they had; what is missing went to processes outside of this test."""
        took_s = self._processor_s() - self._before_s
        return min(took_s / (time.monotonic() - self._began) / self._cores, 1.0)

    def close(self) -> None:
        """End them."""
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def busy_cores() -> Iterator[Burners]:
    """Processes on every core, until the end of the test."""
    burners = Burners()
    yield burners
    burners.close()


@pytest.mark.thorough
def test_a_stall_is_reported_in_time(
    begin: Callable[..., Ranks], start: Callable[..., Running], busy_cores: Burners
) -> None:
    """With all cores busy at a nice value that is five lower, the verdict comes within two seconds of the threshold.

    If others use the machine as well, everything here takes as much longer as the busy processes do.
    """
    ranks = begin(2)
    running = start("agent", "--keep", "0", OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT=str(round(THRESHOLD_S * 1000)))
    running.wait_for("/metrics is served")
    usual = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    until(lambda: set(placed(running.process.pid)) == set(behind([usual])))
    for sequence in range(1, 20):
        ranks.meet(sequence)
    ranks.send(0, "enter 20")
    entered = time.monotonic()
    busy_cores.measure()
    running.wait_for("stall: ")
    took_s = time.monotonic() - entered
    assert took_s < THRESHOLD_S + PROMISE_S / busy_cores.share(), f"with {busy_cores.share():.0%} of the cores"


def test_place_while_a_verdict_may_be_due() -> None:
    """All threads and the session give way when nothing has been urgent for a while, until something is."""
    with subprocess.Popen(
        [sys.executable, str(HERE / "giving_way.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "here\n"
        usual = placed(process.pid)
        assert len(usual) == 2, "threads"
        for is_urgent in (False, True):
            process.stdin.write(f"{int(is_urgent)}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "placed\n"
            assert placed(process.pid) == (restored(usual) if is_urgent else behind(usual))
            assert session_nice(process.pid) in (None, 0 if is_urgent else NICE)


def placed(pid: int) -> list[tuple[int, int]]:
    """Policy and nice value of each thread of a process."""
    found: list[tuple[int, int]] = []
    for thread in map(int, os.listdir(f"/proc/{pid}/task")):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            found.append((os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread)))
    return found


def behind(usual: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Where threads are that give way."""
    return [(os.SCHED_BATCH, min(nice + NICE, 19)) for _, nice in usual]


def restored(usual: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Where threads are that no longer give way: nice values only go back for those who may lower them."""
    rights = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:"))
    may_lower = int(rights.split()[1], 16) >> CAP_SYS_NICE & 1
    return usual if may_lower else [(policy, min(nice + NICE, 19)) for policy, nice in usual]


def session_nice(pid: int) -> int | None:
    """The nice value of a process's session; None where the kernel does not group processes by session."""
    try:
        return int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])
    except (OSError, IndexError):
        return None
