"""Clean-ups beside each other, and beside processes that create tapes: none disturbs another, and nothing is left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.errors import TapeError
from otel_torchdist.node.job.directory import job_directory
from otel_torchdist.node.job.leftovers import clean_up
from otel_torchdist.system.files.locks import exclusive_lock, shared_lock
from tests.support.tapes.directories import key, leave_job, names_in
from tests.support.tapes.tapes import begin, new_writer, open_descriptors, settled_descriptors, start
from tests.support.waiting import until


@contextlib.contextmanager
def cleaners(base: Path, many: int) -> Iterator[None]:
    """Processes that remove all they may, all the time; none of them may fail."""
    processes = [start(Path(__file__).with_name("cleaner.py"), base, 0, 0) for _ in range(many)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    try:
        yield
    finally:
        rounds = [process.communicate("end\n")[0] for process in processes]
    assert all(int(each) > 0 for each in rounds)
    assert [process.returncode for process in processes] == [0] * many


@pytest.mark.process
def test_creation_during_clean_ups(memory: Path) -> None:
    """A tape that is created while others clean up appears, stays while it is written, and is removed afterwards."""
    before = settled_descriptors()
    with cleaners(memory, 2):
        for turn in range(150):
            directory = job_directory(memory, key(turn % 3))
            writer = new_writer(directory)
            begin(writer)
            for _ in range(3):
                assert writer.path.exists()
                assert writer.path.with_suffix(".names").exists()
                time.sleep(0.001)
            writer.close()
            del writer
        assert until(lambda: names_in(memory) == set())
    left = open_descriptors()
    assert left <= before
    # What watches processes for an earlier test may end only now; it has no files.
    assert {name for name in before - left if "anon_inode" not in name} == set()


def test_clean_ups_beside_each_other(memory: Path) -> None:
    """Several processes that remove the same leftovers at the same time do not disturb one another."""
    with cleaners(memory, 3):
        for turn in range(60):
            for number in range(5):
                with contextlib.suppress(FileNotFoundError):  # removed while the helper leaves files in it
                    leave_job(memory, turn * 5 + number, age_s=10)
        assert until(lambda: names_in(memory) == set())


def test_creator_waits_for_a_clean_up(memory: Path) -> None:
    """A creator waits for a clean-up, but not forever: then there is no tape, and an error states why."""
    directory = job_directory(memory, key(1))
    with exclusive_lock(directory) as alone:
        assert alone
        before = settled_descriptors()
        with pytest.raises(TapeError, match="a clean-up has kept it locked"), shared_lock(directory, deadline_s=0.1):
            pytest.fail("it is locked")
        assert open_descriptors() == before
    with shared_lock(directory), shared_lock(directory), exclusive_lock(directory) as alone:
        assert not alone, "creators share the lock"


def test_lock_ends_with_its_owner(memory: Path) -> None:
    """A child that is forked while the lock is held does not hold it any longer than its parent."""
    directory = job_directory(memory, key(1))
    file = os.open(directory, os.O_RDONLY)
    with shared_lock(directory):
        copies = [os.dup(int(name.split(":")[0])) for name in open_descriptors() if name.endswith(str(directory))]
        assert len(copies) == 2
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for descriptor in (file, *copies):
        os.close(descriptor)


def test_directory_is_made_again(memory: Path) -> None:
    """A job directory that a clean-up has removed before the tape was created comes back with the tape."""
    directory = job_directory(memory, key(1))
    clean_up(memory, 0, 0)
    assert not directory.exists()
    writer = new_writer(directory)
    assert writer.path.exists()
    writer.close()


def test_directory_goes_before_it_is_locked(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock on a directory that was removed a moment before protects nothing: a new one is created and locked."""
    directory = job_directory(memory, key(1))
    removed: list[Path] = []

    def remove_first(file: int, operation: int) -> None:
        if not removed:
            removed.append(directory)
            directory.rmdir()
        flock(file, operation)

    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", remove_first)
    with shared_lock(directory):
        assert removed == [directory]
        assert directory.is_dir()
        with exclusive_lock(directory) as alone:
            assert not alone


def test_nowhere_to_create(memory: Path) -> None:
    """Where the base directory is gone, or a file stands in the way, there is an error and no tape."""
    with pytest.raises(TapeError, match="No such file"):
        new_writer(memory / "gone" / key(1))
    (memory / "file").touch()
    with pytest.raises(TapeError, match="Not a directory"):
        new_writer(memory / "file")
