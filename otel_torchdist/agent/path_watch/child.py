"""Computes a critical path in a child process with low priority, so that it delays no verdict.

In a thread of the agent the computation would hold the GIL, and its memory would not be returned. The child imports
neither torch nor OpenTelemetry. It reads this node's tapes while the agent still waits for the calls of other nodes.
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
from otel_torchdist.model.reports.finding import PathLengths, SlowPart
from otel_torchdist.sources.history.call_table import CallTable

MAX_CALLS: Final = 65_536
"""Upper bound on calls of all ranks together: about 10 s of processor time and 100 MB."""
TIMEOUT_S: Final = 120.0
_NICE: Final = 10
_PR_SET_PDEATHSIG: Final = 1
_BOOT: Final = """\
import sys
sys.path[:] = sys.argv[1:]
from otel_torchdist.system.this_process.commands import freezing_imports
with freezing_imports():
    from otel_torchdist.agent.path_watch.child import main
main()
"""
_SIZE: Final = struct.Struct("<I")
_SHOWN_BYTES: Final = 300


class ChildError(TorchDistError):
    """The child process has failed; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class StepsTask:
    """A request to read the calls of some steps.

    Attributes:
        tapes: Paths of the tapes of this node's ranks.
        steps: The steps.
    """

    tapes: tuple[str, ...]
    steps: StepRange


@dataclass(frozen=True, slots=True)
class NodeCalls:
    """The calls of one node's ranks in some steps.

    Attributes:
        segments: The calls, as archive segments.
        ranks: Number of the node's ranks.
    """

    segments: bytes
    ranks: int


@dataclass(frozen=True, slots=True)
class PathTask:
    """A request to find the critical path of these steps.

    Attributes:
        others: The calls of the other nodes' ranks.
        members: Ranks whose calls must all be known; without one of them, the path could lead to the wrong rank.
    """

    others: tuple[NodeCalls, ...]
    members: frozenset[int]


@dataclass(frozen=True, slots=True)
class MeasuredPath:
    """The result of a `PathTask`.

    Attributes:
        lengths: Lengths of the path; None if there is no path.
        parts: The slow parts of the run.
        calls: Number of calls. Beyond `MAX_CALLS`, no path is computed.
        took_s: Processor time of the child in seconds.
    """

    lengths: PathLengths | None
    parts: tuple[SlowPart, ...]
    calls: int
    took_s: float


class Child:
    """The child process. It begins to read the calls of some steps as soon as it is started."""

    def __init__(self, tapes: Iterable[Path], steps: StepRange) -> None:
        """Start the process.

        Raises:
            ChildError: The process cannot be started.
        """
        task = msgspec.msgpack.encode(StepsTask(tuple(map(str, tapes)), steps))
        command = [sys.executable, "-c", _BOOT, *map(str, sys.path)]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            raise ChildError(str(error)) from error
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: its standard error says why
            self._process.stdin.write(_SIZE.pack(len(task)) + task)
            self._process.stdin.flush()

    def segments(self, timeout_s: float) -> bytes:
        """Return the calls, as archive segments.

        Raises:
            ChildError: The process has failed, or took too long.
        """
        return self._finish(b"", timeout_s)

    def path(self, others: Sequence[NodeCalls], members: frozenset[int]) -> MeasuredPath:
        """Return the critical path over this node's calls and those in `others`.

        Raises:
            ChildError: The process has failed, or took too long.
        """
        task = msgspec.msgpack.encode(PathTask(tuple(others), members))
        try:
            return msgspec.msgpack.decode(self._finish(task, TIMEOUT_S), type=MeasuredPath)
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
            shown = errors[-_SHOWN_BYTES:].decode(errors="replace").strip()
            raise ChildError(f"exit code {self._process.returncode}: {shown}")
        return output

    def kill(self) -> None:
        """Kill the process, if it has not ended; callable from any thread."""
        self._process.kill()


def main() -> None:
    """Read tasks from standard input, and write the answer to standard output."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the kernel kills this process when the agent ends
    os.nice(_NICE)
    (size,) = _SIZE.unpack(sys.stdin.buffer.read(_SIZE.size))
    task = msgspec.msgpack.decode(sys.stdin.buffer.read(size), type=StepsTask)
    local_calls = NodeCalls(segments_of(map(Path, task.tapes), task.steps), len(task.tapes))
    second_task = sys.stdin.buffer.read()
    if not second_task:
        answer = local_calls.segments
    else:
        path_task = msgspec.msgpack.decode(second_task, type=PathTask)
        answer = msgspec.msgpack.encode(_path_result([local_calls, *path_task.others], path_task.members))
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()


def _path_result(nodes: Sequence[NodeCalls], members: frozenset[int]) -> MeasuredPath:
    calls = sum(operations_in(node.segments) for node in nodes)
    path = _path(nodes, members) if calls <= MAX_CALLS else None
    if path is None or not path.has_steps:
        return MeasuredPath(None, (), calls, time.process_time())
    return MeasuredPath(lengths_of(path), tuple(slow_parts_of(path)), calls, time.process_time())


def _path(nodes: Sequence[NodeCalls], members: frozenset[int]) -> CriticalPath | None:
    finder, table = PathFinder(), CallTable()
    seen: set[int] = set()
    for node in nodes:
        for history in histories_in(node.segments, node.ranks):
            if history.rank not in seen:
                seen.add(history.rank)
                finder.add(table.columns_of(history))
    return finder.path() if members <= seen else None
