"""Descriptors that other code closes, and whose numbers its own files get, are neither used nor closed."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from otel_torchdist.errors import TapeError
from otel_torchdist.node.job.directory import READER_LOCK_NAME
from otel_torchdist.node.job.tapes import ReaderLock
from otel_torchdist.system.files.kept import KeptDescriptor, KeptFile, high_descriptor, open_epoll
from otel_torchdist.tape.memory import FileMemory


@pytest.fixture
def kept(tmp_path: Path) -> KeptFile:
    """A file of ours."""
    return KeptFile(tmp_path / "ours", os.O_RDWR | os.O_CREAT | os.O_EXCL)


def taken(number: int, folder: Path) -> Path:
    """Let a file of the program have a descriptor."""
    path = folder / "the program's"
    path.write_bytes(b"checkpoint")
    with path.open("r+b") as file:
        os.dup2(file.fileno(), number)
    return path


def test_numbers_are_high(kept: KeptFile) -> None:
    """Programs close low descriptors, and the kernel gives out the lowest ones."""
    assert kept.fileno() >= high_descriptor()
    with open_epoll() as epoll:
        assert epoll.fileno() >= high_descriptor()
        epoll.register(kept_pipe := os.eventfd(1), select.EPOLLIN)
        assert epoll.poll(0) == [(kept_pipe, select.EPOLLIN)]
        os.close(kept_pipe)
    kept.close()


def test_number_that_is_taken(kept: KeptFile, tmp_path: Path) -> None:
    """It is not used and not closed, and the file is opened again by its path."""
    os.write(kept.fileno(), b"ours")
    number = kept.fileno()
    path = taken(number, tmp_path)
    assert not kept.is_open
    with pytest.raises(OSError, match="has closed a descriptor of otel_torchdist"):
        kept.fileno()
    kept.reopen()
    assert os.pread(kept.fileno(), 10, 0) == b"ours"
    assert kept.fileno() != number
    kept.close()
    kept.close()
    assert os.path.samestat(os.fstat(number), path.stat())
    os.close(number)


def test_another_file_at_the_path(kept: KeptFile, tmp_path: Path) -> None:
    """It is not taken for the one that was closed, nor is a link to that followed."""
    os.close(kept.fileno())
    (tmp_path / "ours").rename(tmp_path / "moved")
    (tmp_path / "ours").touch()
    with pytest.raises(OSError, match="another file has its path"):
        kept.reopen()
    (tmp_path / "ours").unlink()
    (tmp_path / "ours").symlink_to(tmp_path / "moved")
    with pytest.raises(OSError, match="symbolic links"):
        kept.reopen()
    (tmp_path / "moved").rename(tmp_path / "ours")
    kept.reopen()
    kept.close()


def test_pipe(tmp_path: Path) -> None:
    """What has no path cannot be opened again, and is not confused with another pipe."""
    read, write = map(KeptDescriptor, os.pipe())
    number = read.fileno()
    os.close(number)
    others = os.pipe()
    os.dup2(others[0], number)
    assert (read.is_open, write.is_open) == (False, True)
    read.close()
    os.fstat(number)
    for one in (*others, number):
        os.close(one)
    write.close()


def test_tape_that_is_read(tmp_path: Path) -> None:
    """A reader in a rank writes no request into the program's file, and does not close it."""
    (tmp_path / "tape").write_bytes(bytes(64))
    file = os.open(tmp_path / "tape", os.O_RDWR)
    memory = FileMemory(file, readonly=False, where="tape")
    memory[1] = 5
    path = taken(file, tmp_path)
    with pytest.raises(TapeError, match="closed by other code"):
        memory[0] = 7
    memory.close()
    os.fstat(file)
    os.close(file)
    assert path.read_bytes() == b"checkpoint"


def test_lock_of_a_reader(tmp_path: Path) -> None:
    """A reader in a rank locks, unlocks and closes no file of the program, and takes its lock again."""
    job = tmp_path / "job"
    job.mkdir()
    lock = ReaderLock(job)
    assert lock.is_won
    (number,) = (int(one.name) for one in Path("/proc/self/fd").iterdir() if one.resolve() == job / READER_LOCK_NAME)
    path = taken(number, tmp_path)
    assert lock.is_won
    assert (job / READER_LOCK_NAME) in {one.resolve() for one in Path("/proc/self/fd").iterdir()}
    lock.resign()
    assert os.path.samestat(os.fstat(number), path.stat())
    os.close(number)
