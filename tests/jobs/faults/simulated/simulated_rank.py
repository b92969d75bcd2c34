"""A rank of a simulated job: what its program may do, and a real tape on which it is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from otel_torchdist.model.kinds import How, RecordKind, RunIdState
from otel_torchdist.model.names import CallerName, CallSiteName, GroupName, SignatureName
from otel_torchdist.model.rank_state.stacks import ThreadStack
from otel_torchdist.model.text import name_caller
from otel_torchdist.node.job.requests.stacks import write_stacks
from otel_torchdist.tape import seals
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.layout import MAIN_CALLER, LiveWord
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.writer import TapeWriter

SECOND = 1_000_000_000
CAPACITY = 1024
ANSWERS_AFTER_S = 0.8


class Group(NamedTuple):
    """A process group; `nth` of those with the same ranks."""

    name: str
    ranks: tuple[int, ...]
    nth: int = 0


class Compute(NamedTuple):
    """Compute without calling anything; `frame` is what its stack leads to."""

    seconds: float
    frame: str = "/home/user/train.py"


class Meet(NamedTuple):
    """Enter a collective; an asynchronous one ends at the next `WAIT`."""

    group: Group
    operation: str = "all_reduce"
    lasts_s: float = 0.001
    is_async: bool = False


class Pass(NamedTuple):
    """Send to a peer, or receive from it."""

    peer: int
    is_send: bool


class Expect(NamedTuple):
    """Announce a long operation; 0 when it is over."""

    seconds: float


class Start(NamedTuple):
    """Start a thread with a program of its own, and go on."""

    program: Generator[Action, None, None]
    function: str


class Simple(NamedTuple):
    """An action without parameters."""

    what: str


WAIT = Simple("wait for what is asynchronous")
STEP = Simple("a step has ended")
Action: TypeAlias = "Compute | Meet | Pass | Expect | Start | Simple"
Place: TypeAlias = tuple[object, int]
"""Where ranks meet: a group or a pair, and the count of the meeting there."""
Program: TypeAlias = Callable[[int, int], Generator[Action, None, None]]
"""The program of a rank in a job of some size."""


class Meeting:
    """Which ranks have entered one operation, with its number on their tapes and the thread, and whether it is over."""

    __slots__ = ("arrived", "expected", "lasts_s", "over")

    def __init__(self, expected: int, lasts_s: float) -> None:
        self.arrived: dict[int, tuple[int, Lane]] = {}
        self.expected = expected
        self.lasts_s = lasts_s
        self.over = False


MAIN_THREAD: Final = 1


class Lane:
    """A thread: its program, and what it waits for."""

    def __init__(self, program: Generator[Action, None, None], thread: int, caller: int, function: str) -> None:
        self.program = program
        self.thread = thread
        self.caller = caller
        self.function = function
        self.in_flight: list[Meeting] = []
        self.waits_for: set[int] = set()
        self.frame = ""


class SimulatedRank:
    """One process: its threads and its tape."""

    def __init__(self, directory: Path, rank: int, size: int, run: int, now_ns: int, program: Program) -> None:
        self.rank = rank
        self.main = Lane(program(rank, size), MAIN_THREAD, MAIN_CALLER, "train")
        self.lanes = [self.main]
        identity = dataclasses.replace(
            identify(rank, rank, size, CAPACITY),
            monotonic_ns=now_ns,
            realtime_ns=now_ns,
            host="node-1",
            pid_namespace=1,
        )
        self.tape = TapeWriter(directory, identity)
        self.tape.set_run_id(run, RunIdState.AGREED)
        self.reader = TapeReader.of_writer(self.tape)
        self.names: dict[object, int] = {}
        self.counts: dict[object, int] = {}
        self.open: dict[int, int] = {}
        self.step = 0
        self.calls = 0
        self.asked_ns = 0
        self.called_ns = now_ns
        """When it last entered or left an operation, or was asked for its stack."""
        self.dies_ns = 0

    def start(self, started: Start) -> Lane:
        """Start a thread; those that run the same function are one caller."""
        name = "caller", started.function
        if name not in self.names:
            number = MAIN_CALLER + 1 + sum(isinstance(one, tuple) and one[0] == "caller" for one in self.names)
            self.tape.names.intern(CallerName(number, name_caller(started.function, "/home/user/train.py")))
            self.names[name] = number
        lane = Lane(started.program, MAIN_THREAD + len(self.lanes), self.names[name], started.function)
        self.lanes.append(lane)
        return lane

    def enter(
        self, lane: Lane, key: object, group: Group, operation: str, now_ns: int, flags: int, peer: int = -1
    ) -> int:
        """Enter an operation; returns its number on the tape."""
        names = self.names
        if key not in names:
            of_group = GroupName(group.name, group.name, group.ranks, group.nth, "gloo", True)
            names[key] = self.tape.names.intern(of_group)
        call = key, operation
        if call not in names:
            signature = SignatureName(operation, "sum", ((1024,),), ("float32",), "cpu", 1)
            names[call] = self.tape.names.intern(signature)
            names["site", call] = self.tape.names.intern(CallSiteName("train", "/home/user/train.py", len(names)))
        sequence = self.counts[key] = self.counts.get(key, 0) + 1
        number = self.tape.begin(
            now_ns, self.step, sequence, 4096, names[key], names[call], names["site", call], 0, peer, 0, lane.thread,
            RecordKind.OPERATION, flags, 0, lane.caller,
        )  # fmt: skip
        self.open[number] = self.called_ns = now_ns
        self.calls += 1
        return number

    def end(self, number: int, now_ns: int) -> None:
        """End an operation."""
        self.tape.complete(number, self.open.pop(number), max(now_ns, 1), How.WAIT)
        self.called_ns = max(self.called_ns, now_ns)

    def beat(self, now_ns: int, resumed_ns: int) -> None:
        """Write its heartbeat, once a second, and at once when the job goes on after a suspension."""
        beat_us = max(now_ns - now_ns % SECOND, resumed_ns) // 1000
        self.tape.view().cast("Q")[LiveWord.HEARTBEAT_US] = seals.seal_live(LiveWord.HEARTBEAT_US, beat_us)

    def note_request(self, now_ns: int) -> None:
        """Check whether its stack has been requested; it answers after some time."""
        if not self.asked_ns and self.tape.pending_request():
            self.asked_ns = self.called_ns = now_ns

    @property
    def answers_ns(self) -> int:
        """When its stack is ready, if requested."""
        return self.asked_ns + round(ANSWERS_AFTER_S * SECOND)

    def answer(self, now_ns: int) -> None:
        """Write its stack, once that is ready."""
        if self.asked_ns and now_ns >= self.answers_ns:
            stacks = [
                ThreadStack(
                    lane.thread,
                    "MainThread" if lane is self.main else f"Thread-{lane.thread}",
                    (CallSiteName("run", lane.frame, 1), CallSiteName(lane.function, "/home/user/train.py", 2)),
                )
                for lane in self.lanes
            ]
            request = self.tape.pending_request()
            write_stacks(self.tape.path, request, stacks)
            self.tape.answer_request(request)
            self.asked_ns = 0

    def close(self) -> None:
        """Release the tape and its reader."""
        self.reader.close()
        if not self.tape.closed:
            self.tape.close()
        for path in self.tape.path.parent.glob(f"{self.tape.path.stem}.*"):
            path.unlink()
