"""A ring of 8 records, threads that write as fast as they can, readers in other processes: nothing is torn."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.tapes.tapes import start

pytestmark = pytest.mark.process


@pytest.fixture
def running() -> Iterator[ExitStack]:
    """Kills all started processes that still run."""
    with ExitStack() as stack:
        yield stack


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line that a process prints."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line
    return line


def start_killed(stack: ExitStack, program: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a program that does not outlive the test."""
    process = start(Path(__file__).with_name(program), *arguments)
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


@pytest.mark.parametrize(
    ("capacity", "threads", "records"),
    [
        (8, 4, 100_000),
        pytest.param(8, 1, 1_000_000, marks=pytest.mark.thorough),
        pytest.param(8, 4, 1_000_000, marks=pytest.mark.thorough),
        pytest.param(512, 2, 500_000, marks=pytest.mark.thorough),
    ],
)
def test_nothing_is_torn(memory: Path, running: ExitStack, capacity: int, threads: int, records: int) -> None:
    """Many records: readers see some of them and miss most; each is whole, once, or counted."""
    writer = start_killed(running, "writer.py", memory, capacity, records, threads)
    path = line_of(writer)
    readers = [start_killed(running, "reader.py", path, limit) for limit in (50_000, 3)]
    for reader in readers:
        assert line_of(reader) == "ready"
    assert writer.stdin is not None
    writer.stdin.write("write\n")
    writer.stdin.flush()
    written = int(line_of(writer))
    assert written >= records // 10
    for reader in readers:
        counts = json.loads(line_of(reader))
        assert (counts["torn"], counts["twice"]) == (0, 0)
        assert counts["entered"] > 100
        assert counts["steps"] > 1  # as often as the scheduler lets it run
        assert counts["ended"] > 10
        # Every number was delivered or lost, and so was the end of each delivered one. An end may have a record of its
        # own.
        most = written - counts["steps"] - counts["ended"] - counts["still_open"]
        assert most - counts["ended"] <= counts["lost"] <= most
