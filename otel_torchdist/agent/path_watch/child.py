"""What takes processor time runs in a process of its own, with low priority, so that it delays no verdict.

In a thread of the agent it would hold the GIL, and leave its memory behind. The process imports neither torch nor
OpenTelemetry. It reads the tapes as soon as it has started, while the agent still waits for the calls of other nodes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from otel_torchdist.agent.path_watch.findings import lengths_of, slow_parts_of
from otel_torchdist.agent.path_watch.steps import StepRange, histories_in, operations_in, segments_of
from otel_torchdist.analysis.critical_path.analysis import PathFinder
from otel_torchdist.analysis.critical_path.critical_path import CriticalPath
from otel_torchdist.errors import TorchDistError
from otel_torchdist.model.finding import PathLengths, SlowPart
from otel_torchdist.sources.history.call_table import CallTable

MOST_CALLS: Final = 65_536
"""Calls of all ranks together, about 10 s of processor time and 100 MB."""
TIMEOUT_S: Final = 120.0
_NICE: Final = 10
_PR_SET_PDEATHSIG: Final = 1
_BOOT: Final = """\
import sys
sys.path[:] = sys.argv[1:]
from otel_torchdist.system.this_process.commands import keeping_what_is_imported
with keeping_what_is_imported():
    from otel_torchdist.agent.path_watch.child import main
main()
"""
_SIZE: Final = struct.Struct("<I")
_SHOWN: Final = 300


class ChildError(TorchDistError):
    """The process has failed; the message says how."""


@dataclass(frozen=True, slots=True)
class StepsTask:
    """Read the calls of some steps.

    Attributes:
        tapes: Paths of the tapes of this node's ranks.
        steps: The steps.
    """

    tapes: tuple[str, ...]
    steps: StepRange


@dataclass(frozen=True, slots=True)
class NodeCalls:
    """What the agent of another node has answered.

    Attributes:
        segments: The calls of its ranks.
        ranks: How many ranks it has.
    """

    segments: bytes
    ranks: int


@dataclass(frozen=True, slots=True)
class PathTask:
    """Find the critical path of these steps.

    Attributes:
        others: The calls of other nodes.
        members: The ranks whose calls must all be known: else the path could lead to the wrong one.
    """

    others: tuple[NodeCalls, ...]
    members: frozenset[int]


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found.

    Attributes:
        lengths: Lengths of the path; None if there is none.
        parts: What is slow.
        calls: How many calls there are; if they are more than `MOST_CALLS`, no path was looked for.
        took_s: Processor time of the process in seconds.
    """

    lengths: PathLengths | None
    parts: tuple[SlowPart, ...]
    calls: int
    took_s: float


class Child:
    """The process, which is reading the calls of some steps."""

    def __init__(self, tapes: Iterable[Path], steps: StepRange) -> None:
        """Start it.

        Raises:
            ChildError: That is not possible.
        """
        task = msgspec.msgpack.encode(StepsTask(tuple(map(str, tapes)), steps))
        command = [sys.executable, "-c", _BOOT, *map(str, sys.path)]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            raise ChildError(str(error)) from error
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: what it has written says why
            self._process.stdin.write(_SIZE.pack(len(task)) + task)
            self._process.stdin.flush()

    def segments(self, timeout_s: float) -> bytes:
        """Return the calls, as segments.

        Raises:
            ChildError: It has failed, or took too long.
        """
        return self._finish(b"", timeout_s)

    def path(self, others: Sequence[NodeCalls], members: frozenset[int]) -> Measured:
        """Find the critical path.

        Raises:
            ChildError: It has failed, or took too long.
        """
        task = msgspec.msgpack.encode(PathTask(tuple(others), members))
        try:
            return msgspec.msgpack.decode(self._finish(task, TIMEOUT_S), type=Measured)
        except msgspec.MsgspecError as error:
            raise ChildError(str(error)) from error

    def _finish(self, task: bytes, timeout_s: float) -> bytes:
        try:
            output, errors = self._process.communicate(task, timeout_s)
        except (OSError, subprocess.TimeoutExpired) as error:
            self.kill()
            self._process.communicate()
            raise ChildError(str(error)) from error
        if self._process.returncode:
            shown = errors[-_SHOWN:].decode(errors="replace").strip()
            raise ChildError(f"exit code {self._process.returncode}: {shown}")
        return output

    def kill(self) -> None:
        """End it, if it has not ended; callable from any thread."""
        self._process.kill()


def main() -> None:
    """Do the task on standard input; the answer goes to standard output."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the agent's end, whatever ends it, is the end of this
    os.nice(_NICE)
    (size,) = _SIZE.unpack(sys.stdin.buffer.read(_SIZE.size))
    task = msgspec.msgpack.decode(sys.stdin.buffer.read(size), type=StepsTask)
    own = NodeCalls(segments_of(map(Path, task.tapes), task.steps), len(task.tapes))
    rest = sys.stdin.buffer.read()
    if not rest:
        answer = own.segments
    else:
        wanted = msgspec.msgpack.decode(rest, type=PathTask)
        answer = msgspec.msgpack.encode(_measured([own, *wanted.others], wanted.members))
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()


def _measured(nodes: Sequence[NodeCalls], members: frozenset[int]) -> Measured:
    calls = sum(operations_in(node.segments) for node in nodes)
    path = _path(nodes, members) if calls <= MOST_CALLS else None
    if path is None or not path.has_steps:
        return Measured(None, (), calls, time.process_time())
    return Measured(lengths_of(path), tuple(slow_parts_of(path)), calls, time.process_time())


def _path(nodes: Sequence[NodeCalls], members: frozenset[int]) -> CriticalPath | None:
    finder, table = PathFinder(), CallTable()
    seen: set[int] = set()
    for node in nodes:
        for history in histories_in(node.segments, node.ranks):
            if history.rank not in seen:
                seen.add(history.rank)
                finder.add(table.columns_of(history))
    return finder.path() if members <= seen else None
