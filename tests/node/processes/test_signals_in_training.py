"""Signals to ranks that train: what is reported about one that holds the GIL, and that none is harmed."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_torchdist.judge.stall.events import VerdictGiven
from otel_torchdist.judge.stall.reporting.attributes import of_place
from otel_torchdist.judge.stall.watch import StallWatch
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.wording.sentence import sentence
from otel_torchdist.judge.world.places import PlaceSource
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.node.job.requests.stacks import offer_path, parse_stack
from otel_torchdist.node.processes import pidfd
from otel_torchdist.node.processes.stack_signal import ask_by_signal
from otel_torchdist.tape.layout import LiveWord
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.telemetry import semconv
from tests.node.processes.conftest import SIGNAL
from tests.support.repository import REPOSITORY
from tests.support.waiting import until

WORKERS = Path(__file__).parent / "workers"
THRESHOLD_S = 2.5
PROMISE_S = 2.0
SIGNALS = 10_000
ASKED = 2_000
"""How often a busy rank is asked."""
TURNS = 5
TITLE = "Stack (most recent call first):"
PACE_S = 0.0001
"""Between two signals, so that the process makes progress too."""
START_S = 60.0


class Job:
    """A running script, and the tapes of its ranks."""

    def __init__(self, memory: Path, worker: str, *arguments: str) -> None:
        self.tapes = memory / "tapes"
        self.tapes.mkdir(0o700)
        self._output = (memory / "output").open("w+")
        environ = {"PYTHONPATH": str(REPOSITORY), "TAPES": str(self.tapes), "STORE": str(memory / "store"), "RANK": "0"}
        self.process = subprocess.Popen(
            [sys.executable, str(WORKERS / worker), *arguments],
            env={**os.environ, "WORLD_SIZE": "1", **environ},
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def readers(self, count: int) -> list[TapeReader]:
        """The tapes of the ranks in order, as soon as all are there."""
        found = until(lambda: len(paths := list(self.tapes.glob("*.tape"))) == count and paths, START_S)
        return sorted(map(TapeReader, found), key=lambda reader: reader.identity.rank)

    def output(self) -> str:
        """The output so far."""
        self._output.seek(0)
        return self._output.read()

    def end(self, timeout_s: float = 60.0) -> str:
        """Wait for its end, which must be a success; returns its output."""
        code = self.process.wait(timeout_s)
        assert code == 0, self.output()
        return self.output()

    def close(self) -> None:
        """Kill what is left and close the tapes."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
        self.process.wait()
        self._output.close()


@pytest.fixture
def run(memory: Path) -> Iterator[Callable[..., Job]]:
    """Runs one job."""
    jobs: list[Job] = []

    def run_job(worker: str, *arguments: str) -> Job:
        jobs.append(Job(memory, worker, *arguments))
        return jobs[-1]

    yield run_job
    for job in jobs:
        job.close()


def first_verdict(readers: list[TapeReader], operation: str) -> VerdictGiven:
    """The first verdict on an operation of this name."""
    watch = StallWatch(StallRules(round(THRESHOLD_S * 1e9)))
    for reader in readers:
        watch.follow(reader)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        for reader in readers:
            watch.observe(reader.identity.nonce, reader.poll())
        for event in watch.check(time.monotonic_ns()):
            if isinstance(event, VerdictGiven) and event.verdict.operation == operation:
                return event
        time.sleep(watch.next_check_s)
    raise AssertionError("no verdict")


def line_of(worker: str, text: str) -> int:
    """The line of a worker that holds a text."""
    lines = (WORKERS / worker).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_rank_that_holds_the_gil(run: Callable[..., Job], memory: Path) -> None:
    """The verdict names the rank in time, with its native call's line; one that no rank waits for is left alone."""
    gate = memory / "gate"
    for rank in (1, 2):
        os.mkfifo(f"{gate}-{rank}")
    job = run("holds_gil.py", str(gate))
    readers = job.readers(3)
    given = first_verdict(readers, "all_reduce")
    verdict = given.verdict
    age_s = (given.world.taken_ns - verdict.since_ns) / 1e9
    assert (verdict.kind, verdict.ranks, verdict.waiting) == (VerdictKind.ABSENT, (1,), (0,))
    assert THRESHOLD_S <= age_s <= THRESHOLD_S + PROMISE_S
    place, line = verdict.places[1], line_of("holds_gil.py", "ctypes.PyDLL(None).read")
    assert place.source is PlaceSource.SIGNAL
    assert f"it is in decode_batch at holds_gil.py:{line} (stack taken by a signal while the GIL was held)" in sentence(
        verdict, age_s
    )
    assert f'holds_gil.py", line {line}, in decode_batch' in place.stacktrace
    assert of_place(place)[semconv.STACK_SOURCE] == "signal"
    assert of_place(place)[semconv.CODE_LINE] == line
    assert of_place(verdict.places[0])[semconv.STACK_SOURCE] == "thread"
    written = [offer_path(reader.path).read_text().count(TITLE) for reader in readers]
    assert written == [0, 1, 0]
    for rank in (1, 2):
        Path(f"{gate}-{rank}").write_text("x")
    job.end()
    for reader in readers:
        reader.close()


@pytest.mark.thorough
def test_many_signals_do_not_crash(run: Callable[..., Job], memory: Path) -> None:
    """A rank whose GIL is held goes on after ten thousand signals to all its threads in turn, with correct results."""
    os.mkfifo(memory / "go")
    job = run("busy.py", str(memory))
    readers = job.readers(2)
    target = readers[0]
    for _ in range(TURNS):
        wait_for_progress(target)
        (memory / "hold").touch()
        until((memory / "held").exists)
        (memory / "hold").unlink()
        (memory / "held").unlink()
        signal_all_threads(target.identity.pid, SIGNALS // TURNS)
        (memory / "go").write_text("x\n")
    wait_for_progress(target)
    dumps = offer_path(target.path).read_text().split(TITLE)[1:]
    (memory / "stop").touch()
    assert "rank 0 is well" in job.end()
    stacks = [parse_stack(TITLE + dump) for dump in dumps]
    assert sum(map(bool, stacks)) > SIGNALS / 4
    assert {"work", "hold"} <= {frame.function for stack in stacks for frame in stack}
    for reader in readers:
        reader.close()


def wait_for_progress(tape: TapeReader) -> None:
    """Wait until a rank has completed a good number of collectives."""
    before = tape.words[LiveWord.NEXT_NUMBER]
    until(lambda: tape.words[LiveWord.NEXT_NUMBER] > before + 20, START_S)


def signal_all_threads(pid: int, signals: int) -> None:
    """Send signals to a process's threads, also native ones, in turn, and to the main thread every other time."""
    threads = [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
    targets = [pidfd.open_thread(pid, thread)[0] for other in threads for thread in (pid, other)]
    for target, _ in zip(itertools.cycle(targets), range(signals), strict=False):
        pidfd.send(target, SIGNAL)
        time.sleep(PACE_S)
    until(lambda: not any(is_in_handler(pid, thread) for thread in threads))
    for target in targets:
        os.close(target)


def is_in_handler(pid: int, thread: int) -> bool:
    """Whether a thread has signals pending, or is in the handler."""
    status = Path(f"/proc/{pid}/task/{thread}/status").read_text()
    return any(int(mask, 16) >> (SIGNAL - 1) & 1 for mask in re.findall(r"Sig(?:Pnd|Blk):\t(.*)", status))


def test_busy_rank_is_left_alone(run: Callable[..., Job], memory: Path) -> None:
    """However often a busy rank is asked, it gets no signal while its Python threads run: that could crash it."""
    job = run("busy.py", str(memory))
    readers = job.readers(2)
    target = readers[0]
    wait_for_progress(target)
    before = target.words[LiveWord.NEXT_NUMBER]
    for _ in range(ASKED):
        target.request_stacks()
        assert ask_by_signal(target, 0) is None
    until(lambda: target.words[LiveWord.NEXT_NUMBER] > before, START_S)
    assert TITLE not in offer_path(target.path).read_text()
    (memory / "stop").touch()
    assert "rank 0 is well" in job.end()
    for reader in readers:
        reader.close()


def test_handler_comes_with_the_tape_and_never_goes(run: Callable[..., Job]) -> None:
    """Signals bring stacks while there is a tape: not in a child, between tapes, or switched off. They never kill.

    A program that takes over the signal later gets it from then on, and the rank reports that within a heartbeat.
    """
    lines = run("comes_and_goes.py").end().splitlines()
    said = [json.loads(line) for line in lines if line.startswith("{")]
    assert [(one["place"], one["offers"], one["stacks"]) for one in said] == [
        ("on a tape", 1, 1),
        ("in a child", 1, 0),
        ("between tapes", 0, 0),
        ("on the next tape", 1, 1),
        ("switched off", 0, 0),
        ("switched on again", 1, 1),
        ("taken over", 0, 0),
    ]
    assert said[1]["code"] == 0
