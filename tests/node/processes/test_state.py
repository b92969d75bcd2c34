"""Real processes as the kernel shows them: their states, their children, and their share of a core."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.node.processes.children import (
    MIN_INTERVAL_NS,
    QUIET_NS,
    CpuTime,
    children_of,
    cores_between,
    ticks_of_tree,
)
from otel_torchdist.node.processes.state import SILENT_NS, ProcessState
from otel_torchdist.tape.identity import TapeIdentity, identify, process_start_ticks
from tests.support.waiting import until

SECOND = 1_000_000_000
SPINS = "import time\nprint(flush=True)\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        until(lambda: Path(f"/proc/{process.pid}/stat").read_text().split()[2] == "S")
        yield process
        process.kill()


def identity_of(process: subprocess.Popen[bytes]) -> TapeIdentity:
    """The identity of a tape that the process would write."""
    ticks = process_start_ticks(process.pid)
    assert ticks is not None
    return dataclasses.replace(identify(0, 0, 1, 64), pid=process.pid, pid_start_ticks=ticks)


def test_stopped_and_continued(process: subprocess.Popen[bytes]) -> None:
    """A waiting process is not stopped; after SIGSTOP it is, since the first check; after SIGCONT no more."""
    state = ProcessState(identity_of(process))
    assert state.check(1, 1) is None
    os.kill(process.pid, signal.SIGSTOP)
    until(lambda: state.check(2, 2))
    stopped = state.check(3, 3)
    assert stopped is not None
    assert (stopped.state, stopped.since_ns) == ("T", 2)
    os.kill(process.pid, signal.SIGCONT)
    until(lambda: state.check(4, 4) is None)


def test_stopped_until_it_is_killed(process: subprocess.Popen[bytes]) -> None:
    """What is killed while it is stopped runs to its end, but has not been continued: that is no sign of life."""
    state = ProcessState(identity_of(process))
    os.kill(process.pid, signal.SIGSTOP)
    stopped = until(lambda: state.check(1, 1))
    assert state.check(SILENT_NS + 1, 1) == stopped
    os.kill(process.pid, signal.SIGKILL)
    while Path(f"/proc/{process.pid}/stat").read_text().split()[2] != "Z":
        assert state.check(SILENT_NS + 2, 1) == stopped
    assert state.check(SILENT_NS + 3, 1) == stopped
    assert state.ran_ns == 0


def test_pid_of_another_process_means_nothing(process: subprocess.Popen[bytes]) -> None:
    """Another start time, PID namespace or boot means another process."""
    own = identity_of(process)
    os.kill(process.pid, signal.SIGSTOP)
    until(lambda: ProcessState(own).check(1, 1))
    assert ProcessState(dataclasses.replace(own, pid_start_ticks=own.pid_start_ticks + 1)).check(1, 1) is None
    assert ProcessState(dataclasses.replace(own, pid_namespace=own.pid_namespace + 1)).check(1, 1) is None
    assert ProcessState(dataclasses.replace(own, boot_id=own.boot_id + 1)).check(1, 1) is None


def test_process_that_is_gone(process: subprocess.Popen[bytes]) -> None:
    """A process that is gone is not stopped, and has no children."""
    state = ProcessState(identity_of(process))
    process.kill()
    process.wait()
    assert state.check(1, 1) is None
    assert children_of(process.pid) == []


def test_children_are_found_while_threads_end() -> None:
    """A thread that ends between two looks at /proc hides no child."""
    is_over = threading.Event()

    def come_and_go() -> None:
        while not is_over.is_set():
            thread = threading.Thread(target=lambda: None)
            thread.start()
            thread.join()

    with subprocess.Popen(["sleep", "600"]) as child:
        threads = [threading.Thread(target=come_and_go) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            assert all(child.pid in children_of(os.getpid()) for _ in range(100))
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
            child.kill()


def test_children_that_work() -> None:
    """A process that only waits for a child works as long as that does; without one it does not."""
    assert cores_between(*_twice(0.3), 0.3) < 0.5
    with subprocess.Popen([sys.executable, "-c", SPINS], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        until(lambda: cores_between(*_twice(0.3), 0.3) > 0.1)
        child.kill()


def _twice(seconds: float) -> tuple[dict[int, int], dict[int, int]]:
    before = ticks_of_tree(os.getpid())
    time.sleep(seconds)
    return before, ticks_of_tree(os.getpid())


def test_only_what_calls_nothing_is_measured() -> None:
    """Nothing is known of a rank that calls, nor at the first look; then, the share since the look before."""
    cpu, now_ns = CpuTime(identify(0, 0, 1, 64)), 100 * SECOND
    assert cpu.check(now_ns, now_ns - QUIET_NS + 1) is None
    assert cpu.check(now_ns, now_ns - QUIET_NS) is None
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    busy = cpu.check(now_ns + MIN_INTERVAL_NS, now_ns - QUIET_NS)
    assert busy is not None
    assert 0.05 < busy < 0.5
    assert cpu.check(now_ns + MIN_INTERVAL_NS + 1, now_ns - QUIET_NS) == busy
    assert cpu.check(now_ns + MIN_INTERVAL_NS, now_ns + MIN_INTERVAL_NS) is None


def test_out_of_reach() -> None:
    """Nothing is known of a process in another PID namespace."""
    cpu = CpuTime(dataclasses.replace(identify(0, 0, 1, 64), pid_namespace=1))
    assert [cpu.check(moment * SECOND, 0) for moment in (10, 20, 30)] == [None] * 3
