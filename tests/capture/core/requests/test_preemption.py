"""Preemption signals are recorded on arrival, and are otherwise handled as without recording."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from otel_torchdist.capture.core.requests.preemption import PreemptionWatch
from otel_torchdist.judge.verdict.wording.ends import describe_death
from otel_torchdist.model.rank_state.lives import Death
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.launch.quiet import QUIET
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import KERNELS, environ_of
from tests.support.tapes.recorded import read_tapes
from tests.support.waiting import until

WORKER = Path(__file__).parent / "workers" / "preempted.py"


@dataclass(frozen=True)
class Ready:
    """Two ranks: rank 0 is in a collective that rank 1 does not enter.

    Attributes:
        pid: Rank 0's process.
        file: The signals that its own descriptor has got.
        tapes: The directory of tapes.
    """

    pid: int
    file: Path
    tapes: Path


@pytest.fixture(params=KERNELS)
def ready(request: pytest.FixtureRequest, warm_python: WarmPython, memory: Path, tmp_path: Path) -> Iterator[Ready]:
    """The ranks, recorded in Python and natively."""
    one = Ready(0, tmp_path / "ready", memory)
    environ = {
        **QUIET,
        **environ_of(request.param),
        "OTEL_PYTHON_TORCHDIST_READER": "none",
        "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(memory),
        "OTEL_PYTHON_TORCHDIST_PREEMPTION_SIGNALS": "SIGTERM,SIGUSR1",
        "WORLD_SIZE": "2",
        "STORE": str(tmp_path / "store"),
    }
    job = warm_python.start(WORKER, [{**environ, "RANK": str(rank)} for rank in range(2)], tmp_path, [str(one.file)])
    try:
        until(one.file.exists)
        until(lambda: not read_tapes(memory)[0].operations[-1].has_ended)
        yield dataclasses.replace(one, pid=job.pids[0])
    finally:
        for pid in job.pids:
            os.kill(pid, signal.SIGKILL)
        job.wait()


def asked(tapes: Path) -> list[tuple[int, int]]:
    """Return the preemption signal of each rank, and its time."""
    paths = sorted(tapes.rglob("*.tape"))
    statuses = [(TapeReader(path).identity.rank, TapeReader(path).status()) for path in paths]
    return [(status.asked_signal, status.asked_ns) for _, status in sorted(statuses, key=lambda one: one[0])]


@pytest.mark.process
def test_signals_are_recorded_within_a_collective(ready: Ready) -> None:
    """During a collective Python's handlers cannot run, but the first signal is on the tape.

    The program's own wakeup descriptor receives all signals. SIGUSR2 is not recorded, nor a signal that a forked child
    sends to itself.
    """
    # From Python 3.12 on asyncio, which torch imports, takes the descriptor away from forked children.
    of_child = [signal.SIGUSR1] if sys.version_info < (3, 12) else []
    until(lambda: [*ready.file.read_bytes()] == of_child)
    ready.file.write_bytes(b"")
    assert asked(ready.tapes) == [(0, 0), (0, 0)]
    before_ns = time.monotonic_ns()
    for number in (signal.SIGUSR2, signal.SIGUSR1, signal.SIGTERM):
        os.kill(ready.pid, number)
        until(lambda number=number: number in ready.file.read_bytes())
    until(lambda: asked(ready.tapes)[0][0])
    (number, at_ns), other = asked(ready.tapes)
    assert number == signal.SIGUSR1 and before_ns <= at_ns <= time.monotonic_ns()
    assert other == (0, 0)
    assert [*ready.file.read_bytes()] == [signal.SIGUSR2, signal.SIGUSR1, signal.SIGTERM]
    assert len(read_tapes(ready.tapes)) == 2


def test_descriptor_is_put_back() -> None:
    """At the end the program's wakeup descriptor is restored, unless other code has set one meanwhile."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        signal.set_wakeup_fd(write)
        watch = PreemptionWatch(frozenset({signal.SIGTERM}), lambda: None)
        watch.start()
        assert signal.set_wakeup_fd(-1) not in (-1, write)
        signal.set_wakeup_fd(write)
        watch.stop()
        assert signal.set_wakeup_fd(write) == write
        watch = PreemptionWatch(frozenset({signal.SIGTERM}), lambda: None)
        watch.start()
        watch.stop()
        watch.stop()
        assert signal.set_wakeup_fd(-1) == write
    finally:
        signal.set_wakeup_fd(-1)
        os.close(read)
        os.close(write)
    until(lambda: not [one for one in threading.enumerate() if one.name == "otel-torchdist-signals"])


def watch_into(marked: list[int]) -> PreemptionWatch:
    """A watch of SIGUSR1 that appends each recorded signal to a list."""
    tape = types.SimpleNamespace(mark_asked=lambda number, at_ns: marked.append(number))
    recorder = types.SimpleNamespace(tape=tape)
    return PreemptionWatch(frozenset({signal.SIGUSR1}), lambda: recorder)  # type: ignore[arg-type,return-value]


def test_signal_just_before_the_end() -> None:
    """A handler may end the program at once: a signal that has arrived before the end is recorded."""
    marked: list[int] = []
    watch = watch_into(marked)
    handler, interval_s = signal.signal(signal.SIGUSR1, lambda number, frame: None), sys.getswitchinterval()
    try:
        watch.start()
        sys.setswitchinterval(100)  # no other thread runs until this one waits
        os.kill(os.getpid(), signal.SIGUSR1)
        watch.stop()
        assert marked == [signal.SIGUSR1]
    finally:
        sys.setswitchinterval(interval_s)
        watch.stop()
        signal.signal(signal.SIGUSR1, handler)


def test_on_another_thread(caplog: pytest.LogCaptureFixture) -> None:
    """Python allows a wakeup descriptor only on the main thread: elsewhere there is one warning."""
    watch = PreemptionWatch(frozenset({signal.SIGTERM}), lambda: None)
    thread = threading.Thread(target=watch.start)
    thread.start()
    thread.join()
    watch.stop()
    assert caplog.messages == [
        "OTEL_PYTHON_TORCHDIST_PREEMPTION_SIGNALS: the process group was not created on the main thread, "
        "so signals are not recorded"
    ]


@pytest.mark.parametrize(
    ("death", "expected"),
    [
        (Death(40_000_000_000, 0, 9, asked=15, asked_ns=10_000_000_000), "was killed by SIGKILL 30.0 s after SIGTERM"),
        (Death(40_000_000_000, 0, 15, asked=15, asked_ns=39_000_000_000), "was killed by SIGTERM"),
        (Death(40_000_000_000, 0, 256, asked=10, asked_ns=38_500_000_000), "exited with code 1, 1.5 s after SIGUSR1"),
        (Death(40_000_000_000, 0, 9), "was killed by SIGKILL"),
    ],
)
def test_in_words(death: Death, expected: str) -> None:
    """The verdict on a death after such a signal mentions the signal."""
    assert describe_death(death) == expected


def pipes() -> dict[int, str]:
    """Return the pipe ends of this process: descriptor, and the pipe's identity."""
    links: dict[int, str] = {}
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the one used for listing is gone
            links[descriptor] = os.readlink(f"/proc/self/fd/{descriptor}")
    return {descriptor: link for descriptor, link in links.items() if link.startswith("pipe:")}


@pytest.mark.parametrize("mode", [os.O_RDONLY, os.O_WRONLY], ids=["the end that is read", "the end that is written"])
def test_pipe_that_the_program_closes(mode: int) -> None:
    """If the program closes an end of our pipe, a new pipe replaces it."""
    marked: list[int] = []
    watch = watch_into(marked)
    handler, before = signal.signal(signal.SIGUSR1, lambda number, frame: None), pipes()
    try:
        watch.start()
        ends = {fcntl.fcntl(one, fcntl.F_GETFL) & os.O_ACCMODE: one for one in pipes() if one not in before}
        old = pipes()[ends[os.O_WRONLY]]
        os.kill(os.getpid(), signal.SIGUSR1)
        until(lambda: marked)
        os.close(ends[mode])
        if mode == os.O_RDONLY:  # the thread still reads from the pipe that it waits for
            os.kill(os.getpid(), signal.SIGUSR1)
        until(lambda: pipes().get(ends[os.O_WRONLY], old) != old)
        os.kill(os.getpid(), signal.SIGUSR1)
        until(lambda: len(marked) == (3 if mode == os.O_RDONLY else 2))
    finally:
        watch.stop()
        signal.signal(signal.SIGUSR1, handler)
    until(lambda: not [one for one in threading.enumerate() if one.name == "otel-torchdist-signals"])
