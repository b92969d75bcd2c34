"""Alive means that the writer's lock is held: however the process ends, and whatever its children do."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from otel_torchdist.model.kinds import TapeState
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.tapes.tapes import WriterProcess, begin, new_writer, open_descriptors
from tests.support.waiting import until

pytestmark = pytest.mark.process


def test_killed(memory: Path) -> None:
    """SIGKILL ends the life of a tape; it stays readable, and its state is still running."""
    with WriterProcess(memory) as rank:
        number = int(rank.send("begin"))
        reader = TapeReader(rank.path)
        assert reader.is_alive()
        rank.kill()
        assert not reader.is_alive()
        reader.poll()
        assert [operation.number for operation in reader.open_operations()] == [number]
        assert reader.status().state is TapeState.RUNNING


def test_ended(memory: Path) -> None:
    """A process that ends by itself is not alive, and its tape shows how it ended."""
    with WriterProcess(memory) as rank:
        rank.send("finish")
        reader = TapeReader(rank.path)
        assert reader.is_alive(), "it may still communicate"
        assert rank.leave() == 0
        assert not reader.is_alive()
        assert reader.status().state is TapeState.FINISHED


def test_forked_child(memory: Path) -> None:
    """A child has the writer's descriptors, but does not count as its life."""
    with WriterProcess(memory) as rank:
        child = rank.fork()
        reader = TapeReader(rank.path)
        assert reader.is_alive()
        rank.kill()
        assert not reader.is_alive()
        os.kill(child, 0)


def test_death_of_a_child(memory: Path) -> None:
    """A child that ends closes its copies of the descriptors; its parent lives on."""
    with WriterProcess(memory) as rank:
        child = rank.fork()
        os.kill(child, signal.SIGKILL)
        assert until(lambda: Path(f"/proc/{child}/stat").read_text().split()[2] == "Z")
        assert TapeReader(rank.path).is_alive()


def test_stopped(memory: Path) -> None:
    """A stopped process is alive, and its tape can be read meanwhile."""
    with WriterProcess(memory) as rank:
        number = int(rank.send("begin"))
        rank.send(f"wait {number}")
        rank.stop()
        reader = TapeReader(rank.path)
        assert reader.is_alive()
        reader.poll()
        (operation,) = reader.open_operations()
        assert (operation.number, operation.wait_entered_ns) == (number, 1_005)
        os.kill(rank.pid, signal.SIGCONT)
        rank.send("begin")
        assert len(reader.poll().entered) == 1


def test_own_tape_until_closed(memory: Path) -> None:
    """A process can read its own tape without appearing dead to others; all see alike when it is closed."""
    writer = new_writer(memory)
    reader = TapeReader.of_writer(writer)
    TapeReader.of_writer(writer).close()
    with WriterProcess(memory) as other:
        assert reader.is_alive()
        assert other.send(f"alive {writer.path}") == "True"
        writer.close()
        assert not reader.is_alive()
        assert other.send(f"alive {writer.path}") == "False"


def test_nothing_stays_open(memory: Path) -> None:
    """Reader and writer release every descriptor and mapping; a late caller of a closed writer cannot crash."""
    before = open_descriptors()
    with WriterProcess(memory) as rank:
        writer = new_writer(memory)
        other, own = TapeReader(rank.path), TapeReader.of_writer(writer)
        other.poll()
        own.poll()
        other.close()
        own.close()
        assert str(rank.path) not in Path("/proc/self/maps").read_text()
        writer.close()
        writer.close()
        number = begin(writer)
        assert writer.complete(number, 0, 5, 3)
        writer.beat()
        del writer, other, own
        rank.kill()
    assert {name for name in open_descriptors() - before if ".tape" in name or ".names" in name} == set()
    assert str(memory) not in Path("/proc/self/maps").read_text()
