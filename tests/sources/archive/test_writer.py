"""The writer: bounded, patient with file systems, and never in the reader's way."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from otel_torchdist.config import Config
from otel_torchdist.sources.archive.files import SUFFIX
from otel_torchdist.sources.archive.reading import history_of, runs_in
from otel_torchdist.sources.archive.writer import ArchiveWriter, archive_of
from otel_torchdist.tape.names.reader import NamesReader
from tests.sources.archive.made import names_beside, operations, segment
from tests.sources.archive.opened import histories_in, run_in, times_archived
from tests.support.repository import REPOSITORY
from tests.support.waiting import core_waits_s, until, waited_for_a_core_s

MOUNTS = shutil.which("unshare") and not subprocess.run(["unshare", "--mount", "true"]).returncode
BOUND = 1 << 18


@pytest.fixture
def names(tmp_path: Path) -> NamesReader:
    """The dictionary of all segments here."""
    return names_beside(tmp_path)


def test_bound(tmp_path: Path, names: NamesReader, caplog: pytest.LogCaptureFixture) -> None:
    """A long run takes no more than its bound: the newest is kept, what is missing is known, and one line says so."""
    caplog.set_level(logging.INFO, "otel_torchdist")
    archive, rows, count = tmp_path / "archive", 750, 36
    writer = ArchiveWriter(archive, BOUND)
    for number in range(count):
        writer.put(segment(operations(1 + number * rows, rows), 1 + (number + 1) * rows), names)
    writer.close(30.0)
    files = list(archive.rglob(f"*{SUFFIX}"))
    size = sum(path.stat().st_size for path in files)
    assert BOUND * 0.8 < size <= BOUND
    assert 12 <= len(files) <= 20
    times = times_archived(archive)[0]
    assert list(times) == list(range(count * rows + 1 - len(times), count * rows + 1))
    [history] = histories_in(archive)
    assert (writer.dropped, history.lost) == (0, count * rows - len(times))
    assert [record.message for record in caplog.records] == [
        f"{files[0].parent}: the archive has reached its limit of {BOUND} bytes: its oldest segments are removed "
        "from now on"
    ]


def test_several_share_a_directory(tmp_path: Path, names: NamesReader) -> None:
    """Runs and nodes have files of their own, and one that reaches its bound takes nothing from the others."""
    archive = tmp_path / "archive"
    writer = ArchiveWriter(archive, BOUND)
    writer.put(segment(operations(1, 100), 101, nonce=1, rank=0, host="a"), names)
    writer.put(segment(operations(1, 100), 101, nonce=2, rank=1, host="../b\n"), names)
    writer.put(segment(operations(1, 100), 101, nonce=3, rank=0, run_id=5), names)
    writer.close(10.0)
    assert {path.parent.name for path in archive.rglob(f"*{SUFFIX}")} == {
        "a-000000ab", ".._b_-000000ab", "node-1-000000ab",
    }  # fmt: skip
    runs, notes = runs_in([archive])
    assert notes == []
    assert sorted([one.rank for one in run.ranks] for run in runs) == [[0], [0, 1]]


def test_another_process_goes_on(tmp_path: Path, names: NamesReader) -> None:
    """What a predecessor has archived is not archived again, whatever of it is read again; what was open is."""
    archive = tmp_path / "archive"
    every = operations(1, 300)
    late = [every[9], every[150]]
    ended = [one for one in every if one not in late]
    first = ArchiveWriter(archive, BOUND)
    opened = segment(ended[:198], 201)
    first.put(dataclasses.replace(opened, open=late), names)
    first.close(10.0)
    second = ArchiveWriter(archive, BOUND)
    second.put(segment([*ended[50:198], late[0]], 180), names)  # read again from the start, not yet as far
    second.put(segment([*ended[190:], late[1]], 301), names)
    second.close(10.0)
    assert times_archived(archive) == {0: dict.fromkeys(range(1, 301), 1)}
    [history] = histories_in(archive)
    assert [view.record for view in history.operations] == every
    assert history.lost == 0


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.skipif(not MOUNTS, reason="this user cannot make mount namespaces")
def test_full_disk(tmp_path: Path) -> None:
    """A full disk costs one warning and what does not fit into memory; the rest is written when there is room again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["unshare", "--mount", sys.executable, "-m", "tests.sources.archive.full_disk", str(disk)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    archive = disk / "archive"
    assert found["warnings"] == [
        f"{archive}: the archive cannot be written (No space left on device). Training and telemetry are not affected. "
        "Segments wait in memory; if they do not fit, the oldest are dropped and counted. Further attempts are not "
        "logged until one succeeds.",
        f"{archive}: the archive is writable again",
    ]
    assert 0 < found["dropped_while_full"] <= found["dropped"]
    assert (found["archived"] + found["dropped"], found["twice"], found["newest"]) == (44_000, 0, 44_000)
    assert found["slowest_s"] < 5, "the caller does not wait for room"


def test_directory_that_is_a_file(tmp_path: Path, names: NamesReader, caplog: pytest.LogCaptureFixture) -> None:
    """A directory that cannot be made costs one warning, and is made as soon as that is possible."""
    caplog.set_level(logging.WARNING, "otel_torchdist")
    archive = tmp_path / "archive"
    archive.write_text("not a directory")
    writer = ArchiveWriter(archive, BOUND)
    writer.put(segment(operations(1, 10), 11), names)
    until(lambda: bool(caplog.records))
    archive.unlink()
    writer.put(segment(operations(11, 10), 21), names)
    writer.close(20.0)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert times_archived(archive) == {0: dict.fromkeys(range(1, 21), 1)}


def test_archive_that_vanishes(tmp_path: Path, names: NamesReader) -> None:
    """If the whole directory is removed during a run, what comes after it is archived in a new one."""
    archive = tmp_path / "archive"
    writer = ArchiveWriter(archive, BOUND)
    writer.put(segment(operations(1, 10), 11), names)
    until(lambda: times_archived(archive) if archive.is_dir() else None)  # it is written, and its file is closed soon
    shutil.rmtree(archive)
    writer.put(segment(operations(11, 10), 21), names)
    writer.close(10.0)
    assert times_archived(archive) == {0: dict.fromkeys(range(11, 21), 1)}


def test_file_system_that_hangs(tmp_path: Path, names: NamesReader) -> None:
    """A write that never returns holds neither the reader nor the end of the process up, and memory stays bounded."""
    hangs = threading.Event()

    def write(_: int, content: memoryview) -> int:
        hangs.wait(60)
        return len(content)

    writer = ArchiveWriter(tmp_path / "archive", BOUND, max_queued=2_000, write=write)
    made = segment(operations(1, 500), 501)
    began, before = time.monotonic(), core_waits_s()
    for _ in range(40):
        writer.put(made, names)
    assert time.monotonic() - began < 1.0 + waited_for_a_core_s(since=before)
    writer.close(0.2)
    assert writer.queued <= 2_000
    assert writer.dropped >= 500 * 40 - 2 * 2_000
    hangs.set()
    writer.close(60.0)


@pytest.mark.thorough
def test_more_rows_than_a_segment_has(tmp_path: Path, names: NamesReader) -> None:
    """A tape that another process had read may bring a million rows at once: they become several segments."""
    archive = tmp_path / "archive"
    writer = ArchiveWriter(archive, 1 << 30)
    writer.put(segment(operations(1, 140_000), 140_001), names)
    writer.close(60.0)
    assert sum(times_archived(archive)[0].values()) == 140_000
    [rank] = run_in(archive).ranks
    assert [location.operations for location in rank.locations] == [131_072, 8_928]
    notes: list[str] = []
    newest = history_of(rank, notes, max_operations=50_000)
    assert newest is not None and len(newest.operations) == 8_928
    assert notes == [
        "rank 0: the 131,072 oldest archived operations are left out, to read at most 50,000 into memory: "
        "`otel-torchdist export --parquet` writes all"
    ]


def test_switched_off() -> None:
    """Without the setting there is no archive."""
    assert archive_of(Config()) is None
