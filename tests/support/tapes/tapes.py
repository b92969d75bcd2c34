"""Helpers of the tape tests: writers, a rank in a process of its own, waiting for a condition."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final

from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.writer import TapeWriter
from tests.support.repository import REPOSITORY

BEGIN_FIELDS: Final = (
    *("entered_ns", "step", "sequence", "message_bytes", "group", "signature", "call_site", "label_word", "peer"),
    *("tag", "thread", "kind", "flags", "phase"),
)
"""The arguments of `TapeWriter.begin`, as they are called in an operation that has been read."""
PROGRAM: Final = Path(__file__).with_name("writer_process.py")


def new_writer(directory: Path, capacity: int = 8, rank: int = 3) -> TapeWriter:
    """A tape of this process."""
    return TapeWriter(directory, identify(rank, 1, 4, capacity))


def begin(writer: TapeWriter, entered_ns: int = 1_000, sequence: int = 1) -> int:
    """Enter an operation with few details."""
    return writer.begin(entered_ns, 0, sequence, 0, 0, 0, 0, 0, -1, 0, 0, RecordKind.OPERATION, 0)


def open_descriptors() -> set[str]:
    """Files that this process has open, mapped ones included."""
    found: set[str] = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{descriptor.name}: {os.readlink(descriptor)}")
        except OSError:  # the descriptor used for listing is gone already
            continue
    return found


def settled_descriptors() -> set[str]:
    """The same once the garbage collector has closed what earlier tests left to it: for comparing with later."""
    gc.collect()
    return open_descriptors()


def start(program: Path, *arguments: object) -> subprocess.Popen[str]:
    """Start a program; it talks on standard input and output."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, str(program), *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


class WriterProcess:
    """A process that writes a tape and obeys commands. Killed at the end, with the processes it has forked.

    Attributes:
        path: Its tape.
        pid: Its process id.
    """

    def __init__(self, directory: Path, capacity: int = 8) -> None:
        self._process = start(PROGRAM, directory, capacity)
        self._children: list[int] = []
        self.pid = self._process.pid
        self.path = Path(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, f"the rank has ended with {self._process.poll()}"
        return line

    def send(self, command: str) -> str:
        """Give it a command and wait for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def fork(self) -> int:
        """Make it fork a child, which sleeps."""
        self._children.append(int(self.send("fork")))
        return self._children[-1]

    def stop(self) -> None:
        """Stop it and wait until it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self) -> None:
        """Kill it, leave its children alone."""
        self._process.kill()
        self._process.wait()

    def leave(self) -> int:
        """Let it end by itself; returns its exit code."""
        self._process.communicate()
        return self._process.returncode

    def __enter__(self) -> WriterProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for child in self._children:
            os.kill(child, signal.SIGKILL)
        self._process.kill()
        self._process.communicate()
