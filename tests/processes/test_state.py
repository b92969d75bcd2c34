"""The kernel's view of real processes."""

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.processes.state import SILENT_NS, ProcessState
from otel_torchdist.tape.identity import TapeIdentity, identify, process_start_ticks
from tests.support.waiting import until


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
    """A process that is gone is not stopped."""
    state = ProcessState(identity_of(process))
    process.kill()
    process.wait()
    assert state.check(1, 1) is None
