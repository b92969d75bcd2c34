"""Leftovers of ended runs are removed within bounds, and files in use never."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_torchdist.node.job.description import description_path
from otel_torchdist.node.job.directory import CHECKPOINT_NAME, START_LOCK_NAME
from otel_torchdist.node.job.leftovers import clean_up
from otel_torchdist.node.job.requests.commands import abort_path, rescue_path
from otel_torchdist.node.job.requests.profile_file import profile_path
from otel_torchdist.node.job.requests.stacks import offer_path, stacks_path
from otel_torchdist.node.job.runs.lives import death_path
from otel_torchdist.system.files.locks import shared_lock
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.tapes.directories import key, leave_job, leave_tape, names_in
from tests.support.tapes.tapes import WriterProcess

PLENTY = 1 << 40


def test_oldest_runs_go_first(memory: Path) -> None:
    """The newest ended jobs are kept, by the time when they last wrote anything."""
    for number, age_s in ((1, 30), (2, 10), (3, 40), (4, 20)):
        leave_job(memory, number, age_s)
    clean_up(memory, 5, PLENTY)
    assert names_in(memory) == {key(1), key(2), key(3), key(4)}
    clean_up(memory, 2, PLENTY)
    assert names_in(memory) == {key(2), key(4)}
    clean_up(memory, 0, PLENTY)
    assert names_in(memory) == set()


def test_run_that_an_agent_is_about_to_read(memory: Path) -> None:
    """It is no run too many until it is read, or half a minute is over; bytes are bounded all the same."""
    unread, read, never = (leave_job(memory, number, 60) for number in (1, 2, 3))
    for directory, age_s in ((unread, 5), (read, 5), (never, 40)):
        start = directory / START_LOCK_NAME
        start.touch()
        when = time.time() - age_s
        os.utime(start, (when, when))
    (read / CHECKPOINT_NAME).touch()
    clean_up(memory, 0, PLENTY)
    assert names_in(memory) == {unread.name}
    clean_up(memory, 0, 0)
    assert names_in(memory) == set()


def test_bytes_are_bounded(memory: Path) -> None:
    """As many of the oldest jobs are removed as the limit in bytes requires."""
    for number in range(1, 6):
        leave_job(memory, number, age_s=100 - number)
    each = sum(path.stat().st_blocks * 512 for path in (memory / key(1)).iterdir())
    clean_up(memory, 100, 3 * each)
    assert names_in(memory) == {key(3), key(4), key(5)}
    clean_up(memory, 100, 3 * each - 1)
    assert names_in(memory) == {key(4), key(5)}
    clean_up(memory, 100, 0)
    assert names_in(memory) == set()


def test_live_job_is_untouched(memory: Path) -> None:
    """A job with one live rank keeps its directory, and the tapes of its dead ranks while there is room."""
    live = memory / key(1)
    with WriterProcess(live) as rank:
        old = leave_tape(live, 7, age_s=1_000)
        leave_job(memory, 2, age_s=10)
        clean_up(memory, 0, PLENTY)
        assert names_in(memory) == {key(1)}
        assert old.exists()
        clean_up(memory, 0, 0)
        assert names_in(live) == {rank.path.name, rank.path.with_suffix(".names").name}
        rank.stop()
        clean_up(memory, 0, 0)
        assert rank.path.exists(), "a stopped rank is alive"
        reader = TapeReader(rank.path)
        assert reader.is_alive()
        reader.close()
        rank.kill()
        clean_up(memory, 0, 0)
        assert names_in(memory) == set()


def test_dead_tapes_of_a_live_job_count_with_the_others(memory: Path) -> None:
    """Ended tapes and ended jobs are removed in one order, oldest first, until the limit is met."""
    live = memory / key(1)
    with WriterProcess(live):
        tapes = [leave_tape(live, number, age_s) for number, age_s in ((11, 50), (12, 30), (13, 10))]
        jobs = [leave_job(memory, number, age_s) for number, age_s in ((2, 40), (3, 20))]
        each = sum(path.stat().st_blocks * 512 for path in jobs[0].iterdir())
        clean_up(memory, 100, 3 * each)
        assert [path.exists() for path in (*tapes, *jobs)] == [False, True, True, False, True]
        assert not tapes[0].with_suffix(".names").exists()


def test_own_tape_stays_alive(memory: Path) -> None:
    """A rank cleans up without opening its own tape, whose lock it would lose with the descriptor."""
    with WriterProcess(memory / key(1)) as rank:
        leave_tape(memory / key(1), 7, age_s=10)
        assert rank.send("clean") == "done"
        assert names_in(memory / key(1)) == {rank.path.name, rank.path.with_suffix(".names").name}
        assert TapeReader(rank.path).is_alive()
        child = rank.fork()
        assert rank.send("clean") == "done"
        assert TapeReader(rank.path).is_alive()
        os.kill(child, 0)


def test_what_this_process_reads_stays(memory: Path) -> None:
    """Tapes that this process has mapped for reading are in use, though their writers are gone."""
    directory = memory / key(1)
    with WriterProcess(directory) as rank:
        rank.send("begin")
        reader = TapeReader(rank.path)
    clean_up(memory, 0, 0)
    assert reader.path.exists()
    reader.close()
    clean_up(memory, 0, 0)
    assert names_in(memory) == set()


BESIDE = (
    abort_path, death_path, description_path, offer_path, profile_path, rescue_path, stacks_path,
)  # fmt: skip


@pytest.mark.parametrize("beside", BESIDE, ids=lambda path_of: path_of.__name__)
def test_every_file_beside_a_tape_goes_with_it(memory: Path, beside: Callable[[Path], Path]) -> None:
    """In a job that is still running, whatever was written for a dead rank is removed with its tape."""
    live = memory / key(1)
    with WriterProcess(live) as rank:
        dead = leave_tape(live, 7, age_s=1_000)
        beside(dead).touch()
        clean_up(memory, 0, 0)
        assert names_in(live) == {rank.path.name, rank.path.with_suffix(".names").name}


def test_half_written_file_goes_too(memory: Path) -> None:
    """A file whose writer was killed before it had its name is removed with its tape."""
    live = memory / key(1)
    with WriterProcess(live) as rank:
        dead = leave_tape(live, 7, age_s=1_000)
        for kind in ("stacks.new", "profile.new", "description.new"):
            dead.with_suffix(f".{kind}").touch()
        dead.with_name(f".{dead.stem}.rescue").touch()
        clean_up(memory, 0, 0)
        assert names_in(live) == {rank.path.name, rank.path.with_suffix(".names").name}


def test_crashed_creator(memory: Path) -> None:
    """Parts without a tape are removed at once, whatever the bounds, in ended jobs and in live ones."""
    ended, live = leave_job(memory, 1, age_s=10), memory / key(2)
    with WriterProcess(live) as rank:
        parts = [
            ".00000000000000aa.new",
            "00000000000000aa.names",
            "00000000000000ab.stacks",
            "00000000000000ac.stacks.new",
        ]
        for directory in (ended, live):
            for part in parts:
                (directory / part).touch()
        clean_up(memory, 100, PLENTY)
        assert names_in(ended) == {f"{1:016x}.{kind}" for kind in ("tape", "names", "stacks")}
        assert names_in(live) == {rank.path.name, rank.path.with_suffix(".names").name}


def test_creator_at_work(memory: Path) -> None:
    """While a tape is being created in a directory, nothing of it is removed."""
    directory = leave_job(memory, 1, age_s=10)
    hidden = directory / ".00000000000000aa.new"
    hidden.touch()
    with shared_lock(directory):
        clean_up(memory, 0, 0)
        assert len(names_in(directory)) == 4
    clean_up(memory, 0, 0)
    assert names_in(memory) == set()


def test_locked_file_of_another_kind(memory: Path) -> None:
    """A locked file of any kind in a job directory means that the directory is in use, by a reader for example."""
    directory = leave_job(memory, 1, age_s=10)
    program = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX); "
        "print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(directory / "agent.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "locked\n"
        clean_up(memory, 0, PLENTY)
        assert len(names_in(directory)) == 4
        agent.communicate()
    clean_up(memory, 0, PLENTY)
    assert names_in(memory) == set()


def test_links_are_not_followed(memory: Path) -> None:
    """Nothing behind a link is touched, neither behind one to a directory nor behind one to a file."""
    outside = memory / "outside"
    precious = leave_tape(outside, 1, age_s=1_000)
    base = memory / "base"
    base.mkdir()
    (base / key(1)).symlink_to(outside)
    directory = leave_job(base, 2, age_s=10)
    (directory / f"{9:016x}.tape").symlink_to(precious)
    (directory / "pipe.tape").symlink_to(memory / "pipe")
    os.mkfifo(memory / "pipe")
    clean_up(base, 0, 0)
    assert names_in(base) == {key(1)}
    assert names_in(outside) == {f"{1:016x}.{kind}" for kind in ("tape", "names", "stacks")}


def test_what_is_not_ours_stays(memory: Path) -> None:
    """A base directory that holds other things keeps them."""
    (memory / "thesis").mkdir()
    (memory / "thesis" / "chapter.tape").touch()
    (memory / "job-thesis").mkdir()
    (memory / "0000000000000001.tape").touch()
    directory = leave_job(memory, 1, age_s=10)
    (directory / "mine").mkdir()
    clean_up(memory, 0, 0)
    assert names_in(memory) == {"thesis", "job-thesis", "0000000000000001.tape", key(1)}
    assert names_in(directory) == {"mine"}


def test_nothing_there(memory: Path) -> None:
    """A base directory that is missing, empty or a file is not an error."""
    clean_up(memory / "missing", 0, 0)
    (memory / "file").touch()
    clean_up(memory / "file", 0, 0)
    clean_up(memory, 0, 0)
    assert names_in(memory) == {"file"}
