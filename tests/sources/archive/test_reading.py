"""Reading archives that were cut off, damaged, copied, or made by an attacker."""

from __future__ import annotations

import os
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from otel_torchdist.model.history import Activity
from otel_torchdist.model.kinds import ActivityKind, How, TapeState
from otel_torchdist.sources.archive.encoding import encode
from otel_torchdist.sources.archive.files import segments_in
from otel_torchdist.sources.archive.reading import (
    ArchivedRank,
    fresh_rows,
    history_of,
    is_archive,
    runs_in,
    segments_of,
)
from otel_torchdist.sources.archive.segment import SegmentLocation
from otel_torchdist.sources.archive.writer import ArchiveWriter
from otel_torchdist.tape.names.reader import NamesReader
from tests.sources.archive.made import names_beside, operations, segment
from tests.sources.archive.opened import histories_in
from tests.support.tapes.fake_tape import SECOND

SEGMENTS, ROWS = 5, 50


@pytest.fixture
def names(tmp_path: Path) -> NamesReader:
    """The dictionary of all segments here."""
    return names_beside(tmp_path)


@pytest.fixture
def archive(tmp_path: Path, names: NamesReader) -> Path:
    """An archive of one rank, whose five segments are in one file."""
    folder = tmp_path / "archive"
    writer = ArchiveWriter(folder, 1 << 30)
    for number in range(SEGMENTS):
        writer.put(segment(operations(1 + number * ROWS, ROWS), 1 + (number + 1) * ROWS), names)
    writer.close(20.0)
    return folder


def _file(archive: Path) -> Path:
    [path] = archive.rglob("*.segments")
    return path


def _numbers(archive: Path) -> tuple[list[int], list[str]]:
    """The numbers of the operations that can be read, and what is reported about the rest."""
    runs, notes = runs_in([archive])
    found = [history_of(rank, notes) for run in runs for rank in run.ranks]
    return [view.record.number for one in found if one is not None for view in one.operations], notes


def test_names_and_times(archive: Path) -> None:
    """Names are resolved as those of a tape, and what was not lost is not missing."""
    [history] = histories_in(archive)
    made = [one for first in range(1, SEGMENTS * ROWS, ROWS) for one in operations(first, ROWS)]
    assert [view.record for view in history.operations] == made
    first = history.operations[0]
    assert first.group is not None and first.call_site is not None
    assert (first.name, first.group.label, first.call_site.function) == ("all_reduce", "mesh_dp", "train")
    assert (history.rank, history.world_size, history.host, history.lost) == (0, 2, "node-1", 0)


def test_cut_off(archive: Path) -> None:
    """Wherever a file is cut, whole segments are read, and one sentence says what is skipped."""
    path = _file(archive)
    content = path.read_bytes()
    ends = [*[location.offset for location in segments_in(path, [])][1:], len(content)]
    chance = random.Random(3)
    for size in (0, 7, 91, *(chance.randrange(len(content)) for _ in range(40)), *ends):
        path.write_bytes(content[:size])
        numbers, notes = _numbers(archive)
        whole = sum(end <= size for end in ends)
        assert numbers == list(range(1, whole * ROWS + 1))
        over = size - ([0, *ends][whole])
        assert notes == (
            [f"{path}: its last segment is cut off: {over:,} bytes at its end are skipped"] if over else []
        )


def test_damage_in_the_middle(archive: Path) -> None:
    """A flipped byte costs its segment; those before and behind it are read, and a line says where it is."""
    path = _file(archive)
    content = path.read_bytes()
    locations = list(segments_in(path, []))
    for spot in range(locations[1].offset, locations[2].offset, 31):
        path.write_bytes(content[:spot] + bytes([content[spot] ^ 0x10]) + content[spot + 1 :])
        numbers, notes = _numbers(archive)
        assert numbers == [*range(1, ROWS + 1), *range(2 * ROWS + 1, SEGMENTS * ROWS + 1)]
        [note] = notes
        assert note.startswith(f"{path}: ") and note.endswith(("damaged: skipped", "its checksum is wrong: skipped"))
        assert f"byte {locations[1].offset:,}" in note
    runs, _ = runs_in([archive])
    history = history_of(runs[0].ranks[0], [])
    assert history is not None and history.lost == ROWS, "how much is missing is known"


def test_random_files(tmp_path: Path) -> None:
    """Random bytes, also with a segment's beginning everywhere, are no run, and reading them ends."""
    chance = random.Random(1)
    path = tmp_path / "x.segments"
    for piece in (chance.randbytes(100_000), b"OTDARCH\x01" * 20_000, b""):
        path.write_bytes(piece)
        runs, notes = runs_in([tmp_path])
        assert runs == []
        assert notes == ([f"{path}: damaged: {len(piece):,} bytes at its end are skipped"] if piece else [])


def test_a_forged_file_takes_no_time(tmp_path: Path) -> None:
    """Beginnings of segments all over a file of 2 MB are skipped in seconds: each costs no search of a megabyte."""
    path = tmp_path / "x.segments"
    path.write_bytes(b"OTDARCH\x01" * (1 << 18))
    began = time.process_time()
    assert list(segments_in(path, [])) == []
    assert time.process_time() - began < 8


def test_many_damaged_segments(tmp_path: Path, names: NamesReader) -> None:
    """A thousand segments that cannot be read are a few lines, not a thousand."""
    content = bytearray(encode(segment(operations(1, 3), 4), names))
    content[-1] ^= 1
    (tmp_path / "x.segments").write_bytes(content * 1_000)
    [run], notes = runs_in([tmp_path])
    assert history_of(run.ranks[0], notes) is None
    assert (len(notes), notes[-1]) == (9, "rank 0: 992 more segments cannot be read")


def test_names_of_an_attacker(tmp_path: Path, names: NamesReader) -> None:
    """Text that controls the terminal is shown escaped, wherever it comes from."""
    path = tmp_path / "evil\x1b[2J.segments"
    content = encode(segment(operations(1, 3), 4, host="\x1b]0;owned\x07"), names)
    path.write_bytes(content + b"rest")
    [run], notes = runs_in([path])
    origin = run.origin()
    assert origin is not None and origin.host == "\\x1b]0;owned\\x07"
    assert notes == [f"{tmp_path}/evil\\x1b[2J.segments: its last segment is cut off: 4 bytes at its end are skipped"]


def test_what_is_no_file(archive: Path) -> None:
    """A pipe, a link, a folder and an unreadable file in an archive stop nothing; the rest is read."""
    folder = _file(archive).parent
    os.mkfifo(folder / "a.segments")
    (folder / "b.segments").symlink_to("/etc/passwd")
    (folder / "c.segments").mkdir()
    numbers, notes = _numbers(archive)
    assert numbers == list(range(1, SEGMENTS * ROWS + 1))
    assert sorted(note.partition(": ")[0] for note in notes) == [str(folder / f"{name}.segments") for name in "abc"]


def test_copies(archive: Path, tmp_path: Path) -> None:
    """A run's folder, its files alone, and a directory with a second copy are all the same run."""
    [run_folder] = archive.iterdir()
    file, single = _file(archive), tmp_path / "copied"
    shutil.copy(file, single)
    shutil.copytree(run_folder, archive / "copy")
    for path in (run_folder, file, single, archive):
        assert is_archive(path)
        numbers, notes = _numbers(path)
        assert (numbers, notes) == (list(range(1, SEGMENTS * ROWS + 1)), [])
    runs, _ = runs_in([archive])
    assert sum(len(columns.ended[0]) for columns in segments_of(runs[0].ranks[0], [])) == SEGMENTS * ROWS


def _fresh(locations: tuple[SegmentLocation, ...]) -> list[int]:
    """The numbers of operations that no earlier segment had."""
    return [
        number
        for columns, is_fresh, _ in fresh_rows(segments_of(ArchivedRank(0, locations), []))
        for number, new in zip(columns.ended[0], is_fresh, strict=True)
        if new
    ]


def test_rows_that_had_not_ended(tmp_path: Path, names: NamesReader) -> None:
    """Operations that were open are counted when they end, also if that takes several segments that are equally far."""
    every = operations(1, 100)
    path = tmp_path / "x.segments"
    opened = replace(segment([*every[:20], *every[22:60]], 61), open=every[20:22])
    path.write_bytes(
        encode(opened, names)
        + encode(segment([every[20]], 61), names)  # does not know of the other one
        + encode(segment([every[21]], 61), names)
        + encode(segment(every[60:], 101), names)
    )
    assert sorted(_fresh(tuple(segments_in(path, [])))) == list(range(1, 101))


def test_the_last_state_of_a_rank(tmp_path: Path, names: NamesReader) -> None:
    """Segments in which nothing has ended are no copies of each other: the last one has the rank's last state."""
    path = tmp_path / "x.segments"
    first = segment([], 61)
    computing = replace(first, activities=[Activity(60, ActivityKind.OPTIMIZER_STEP, 5, 1, 0, 1, None, None, 0)])
    ended = replace(first, activities=[Activity(60, ActivityKind.OPTIMIZER_STEP, 5, 1, 0, 1, 9, How.CALL, 0)])
    finished = replace(first, moment=replace(first.moment, state=TapeState.FINISHED, taken_ns=2_001 * SECOND))
    path.write_bytes(b"".join(encode(one, names) for one in (computing, ended, finished)))
    locations = tuple(segments_in(path, []))
    rank = ArchivedRank(0, locations)
    assert [one.moment.state for one in segments_of(rank, [])][-1] == TapeState.FINISHED
    history = history_of(rank, [])
    assert history is not None and [one.completed_ns for one in history.activities] == [9]
    assert history.until_ns == 2_001 * SECOND


def test_rows_that_were_written_again(tmp_path: Path, names: NamesReader) -> None:
    """What an agent wrote again because it could not read the archive is counted once."""
    every = operations(1, 100)
    path = tmp_path / "x.segments"
    path.write_bytes(
        encode(segment(every[:60], 61), names)
        + encode(segment(every[:80], 81), names)
        + encode(segment(every[80:], 101), names)
    )
    assert _fresh(tuple(segments_in(path, []))) == list(range(1, 101))


def test_file_that_shrinks(archive: Path) -> None:
    """A file that became shorter since it was looked at is a sentence, not an error."""
    [run], _ = runs_in([archive])
    [rank] = run.ranks
    last: SegmentLocation = rank.locations[-1]
    os.truncate(last.path, last.offset + 100)
    notes: list[str] = []
    assert history_of(rank, notes) is not None
    assert notes == [f"{last.path}: the segment at byte {last.offset:,}: it is truncated: skipped"]
    last.path.unlink()
    assert history_of(rank, notes := []) is None
    assert len(notes) == SEGMENTS
