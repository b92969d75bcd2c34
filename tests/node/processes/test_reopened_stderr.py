"""Writing to the standard error of another process, whatever it is, without holding it open or overwriting anything."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_torchdist.agent.notices import NoticeDelivery, write_to
from otel_torchdist.node.job.ancestry import StandardError, descriptor_path
from otel_torchdist.tape.identity import process_start_ticks

NOTICE = b"otel_torchdist: rank 2 is late\n"
WRITES = "import sys\nfor line in sys.stdin: sys.stderr.write(line); sys.stderr.flush(); print('written', flush=True)"


class Job:
    """A process that writes what it is given to its standard error."""

    def __init__(self, stderr: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
        pid = self._process.pid
        path = descriptor_path(pid)
        facts = os.stat(path)
        ticks = process_start_ticks(pid)
        assert ticks is not None
        self.stderr = StandardError(facts.st_dev, facts.st_ino, os.readlink(path), ((pid, ticks),))

    def write(self, text: str) -> None:
        """Write a line, and wait until it is written."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "written\n"

    def end(self) -> None:
        """End it."""
        self._process.communicate()


@pytest.fixture
def start() -> Iterator[Callable[[int], Job]]:
    """Starts a job with a descriptor as its standard error, which is closed here."""
    jobs: list[Job] = []

    def started(stderr: int) -> Job:
        jobs.append(Job(stderr))
        os.close(stderr)
        return jobs[-1]

    yield started
    for job in jobs:
        job.end()


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe; the reading end is closed at the end."""
    reading, writing = os.pipe()
    try:
        yield reading, writing
    finally:
        os.close(reading)


def test_pipe_ends_with_its_job(start: Callable[[int], Job]) -> None:
    """Whoever reads a job's output to its end gets the notice, and comes to the end when the job does."""
    with pipe() as (reading, writing):
        job = start(writing)
        assert write_to(job.stderr, NOTICE) is NoticeDelivery.DONE
        job.end()
        assert os.read(reading, 4096) == NOTICE
        assert os.read(reading, 4096) == b""
        assert write_to(job.stderr, NOTICE) is NoticeDelivery.IMPOSSIBLE


def test_full_pipe_is_left(start: Callable[[int], Job]) -> None:
    """A reader that has stopped holds nothing up here, and gets no half of a notice later."""
    with pipe() as (reading, writing):
        os.set_blocking(writing, False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(writing, b"x" * 4096)
        os.set_blocking(writing, True)
        job = start(writing)
        assert write_to(job.stderr, NOTICE) is NoticeDelivery.IMPOSSIBLE
        os.read(reading, 1 << 16)
        assert write_to(job.stderr, NOTICE) is NoticeDelivery.DONE


def test_log_that_is_appended_to(start: Callable[[int], Job], tmp_path: Path) -> None:
    """A notice stands between the lines of a job whose log is opened with `2>>`."""
    log = tmp_path / "log"
    job = start(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    job.write("before")
    assert write_to(job.stderr, NOTICE) is NoticeDelivery.DONE
    job.write("after")
    assert log.read_bytes() == b"before\n" + NOTICE + b"after\n"


def test_log_that_would_be_overwritten(start: Callable[[int], Job], tmp_path: Path) -> None:
    """With `2>` the job writes at an offset of its own: the notice waits until nobody does so any more."""
    log = tmp_path / "log"
    job = start(os.open(log, os.O_WRONLY | os.O_CREAT))
    job.write("before")
    assert write_to(job.stderr, NOTICE) is NoticeDelivery.IN_USE
    job.write("after")
    job.end()
    assert write_to(job.stderr, NOTICE) is NoticeDelivery.DONE
    assert log.read_bytes() == b"before\nafter\n" + NOTICE


def test_log_of_another_job(start: Callable[[int], Job], tmp_path: Path) -> None:
    """Another file under the same path is left alone, and so are the target of a link and the log of another job."""
    log, other = tmp_path / "log", tmp_path / "other"
    job = start(os.open(log, os.O_WRONLY | os.O_CREAT))
    job.end()
    log.rename(other)
    log.write_bytes(b"")
    assert write_to(job.stderr, NOTICE) is NoticeDelivery.IMPOSSIBLE
    log.unlink()
    log.symlink_to(other)
    assert write_to(job.stderr, NOTICE) is NoticeDelivery.IMPOSSIBLE
    log.unlink()
    other.rename(log)
    start(os.open(log, os.O_WRONLY | os.O_TRUNC))
    assert write_to(job.stderr, NOTICE) is NoticeDelivery.IN_USE
    assert log.read_bytes() == b""


def test_removed_log(start: Callable[[int], Job], tmp_path: Path) -> None:
    """A log that was removed is still the job's."""
    log = tmp_path / "log"
    job = start(os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND))
    log.unlink()
    assert write_to(job.stderr, NOTICE) is NoticeDelivery.DONE
    assert not log.exists()


def test_terminal(start: Callable[[int], Job]) -> None:
    """A terminal shows the notice, and does not become that of this process."""
    controlling, terminal = pty.openpty()
    job = start(terminal)
    assert write_to(job.stderr, NOTICE) is NoticeDelivery.DONE
    assert os.read(controlling, 4096) == NOTICE.replace(b"\n", b"\r\n")
    os.close(controlling)


def test_socket(start: Callable[[int], Job]) -> None:
    """A socket, as systemd gives its services, cannot be opened again."""
    here, there = socket.socketpair()
    with here:
        job = start(there.detach())
        assert write_to(job.stderr, NOTICE) is NoticeDelivery.IMPOSSIBLE
