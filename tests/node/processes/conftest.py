"""Ranks whose tapes lie in memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.node.job.requests.stacks import offer_path
from otel_torchdist.tape.layout import LiveWord
from otel_torchdist.tape.mapped import MappedTape
from otel_torchdist.tape.seals import seal_live
from tests.node.processes import signalled_rank
from tests.support.repository import REPOSITORY
from tests.support.waiting import until

SIGNAL = signalled_rank.SIGNAL
needs_signals_for_threads = pytest.mark.skipif(
    tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (6, 9),
    reason="before Linux 6.9 a pidfd stands for a process, and its main thread takes the signal",
)


class RankProcess:
    """A process that runs `signalled_rank`, seen from a reader.

    Attributes:
        process: The process.
        tape: Its tape, opened by this process.
        offers: Whether it reports that it can be signalled.
    """

    def __init__(
        self, directory: Path, owner: str = "none", changes: dict[str, int] | None = None, under: Sequence[str] = ()
    ) -> None:
        command = [*under, sys.executable, signalled_rank.__file__, str(directory), owner, json.dumps(changes or {})]
        environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ, start_new_session=True
        )
        path, offers = self._line().split()
        self.tape = MappedTape(Path(path))
        self.offers = offers == "True"
        self.rest()

    def rest(self) -> None:
        """Make its tape show that its Python threads have not run for long, and that a request was not answered."""
        long_ago_us = time.monotonic_ns() // 1000 - 60_000_000
        word = LiveWord.HEARTBEAT_US
        self.tape.words[word] = seal_live(word, long_ago_us)
        self.tape.request_stacks()

    @property
    def pid(self) -> int:
        """Its pid in its own PID namespace."""
        return self.tape.identity.pid

    @property
    def file(self) -> Path:
        """Where its stacks go."""
        return offer_path(self.tape.path)

    def send(self, command: str) -> str:
        """Make it do something; returns its answer."""
        self.write(command + "\n")
        return self._line().strip()

    def write(self, text: str) -> None:
        """Write to its input."""
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it has ended: {self.process.wait(10)}"
        # Then its threads rest in system calls; a signal that came while one still ran Python could crash it.
        until(lambda: all("State:\tS" in (task / "status").read_text() for task in self._tasks.iterdir()))
        return line

    @property
    def _tasks(self) -> Path:
        return Path(f"/proc/{self.process.pid}/task")

    def close(self) -> None:
        """End the process, whatever state it is in."""
        self.process.kill()
        self.process.communicate()
        self.tape.close()


@pytest.fixture
def start(memory: Path) -> Iterator[Callable[..., RankProcess]]:
    """Starts ranks and ends them."""
    started: list[RankProcess] = []

    def start_one(*arguments: Any, **keywords: Any) -> RankProcess:
        rank = RankProcess(memory, *arguments, **keywords)
        started.append(rank)
        return rank

    yield start_one
    for rank in started:
        rank.close()
