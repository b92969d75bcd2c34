"""Reading dumps from whatever a user names: folders, files, archives, and what else lies there."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.sources.flight.reading.limits import ReadingLimits
from otel_torchdist.sources.flight.reading.reader import FoundDumps, rank_in, read_dumps, read_whole
from tests.sources.flight.made_dumps import START_NS, call, document, late_rank, write, write_json


def ranks_of(found: FoundDumps) -> list[int]:
    """The ranks whose dumps are used."""
    return [one.rank for one in found.dumps]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3), ("comm_lib_trace_rank_12", 12), ("hccl_trace_rank_0", 0), ("rank_7", 7),
        ("rank3.json", 3), ("_dump_15", 15), ("job42_rank_3_1700000000.pkl", 3), ("trace5", 5), ("2.json", 2),
        ("RANK-4.json.gz", 4), ("0_flight.pickle", 0), ("trace", None), ("notes.txt", None), ("rank_", None),
        ("dump_99999999999", None),
    ],
)  # fmt: skip
def test_rank_in_name(name: str, rank: int | None) -> None:
    """Whatever prefix was configured: the number after `rank`, or at the end."""
    assert rank_in(name) == rank


def tar_of(mode: Any) -> Callable[[Path, Path], None]:
    """Packs a folder as a tar."""

    def pack(folder: Path, archive: Path) -> None:
        with tarfile.open(archive, mode) as packed:
            packed.add(folder, "../../job/dumps")

    return pack


def pack_zip(folder: Path, archive: Path) -> None:
    """Packs a folder as a zip."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in folder.iterdir():
            packed.write(file, f"/etc/../job/{file.name}")


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.zip", pack_zip), ("a.tar", tar_of("w")), ("a.tgz", tar_of("w:gz")), ("a.tar.gz", tar_of("w:gz")),
        ("a.tar.bz2", tar_of("w:bz2")), ("a.tar.xz", tar_of("w:xz")),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)  # fmt: skip
def test_archives(tmp_path: Path, name: str, pack: Callable[[Path, Path], None]) -> None:
    """Each kind of archive, alone or in a folder, is read in memory: no path inside it means anything."""
    folder = write(tmp_path / "dumps", late_rank())
    inside = tmp_path / "archives"
    inside.mkdir()
    pack(folder, inside / name)
    before = sorted(tmp_path.rglob("*"))
    for path in (inside / name, inside):
        found = read_dumps([path])
        assert (ranks_of(found), found.notes) == ([0, 1, 2, 3], ())
    assert found.dumps[0].dump.path.startswith(str(inside / name))
    assert sorted(tmp_path.rglob("*")) == before


def test_bundle_of_ours(tmp_path: Path) -> None:
    """What the action `dump` bundles: the recorder's files are read, and tapes are pointed out."""
    folder = write(tmp_path / "dumps", late_rank())
    with tarfile.open(tmp_path / "torchdist-stall-x.tar.gz", "w:gz") as packed:
        packed.add(folder, "torchdist-stall-x/flight-recorder")
        for name in ("verdict.json", "job/1-2.tape", "job/agent.log"):
            member = tarfile.TarInfo(f"torchdist-stall-x/{name}")
            member.size = 5
            packed.addfile(member, io.BytesIO(b"{}   "))
    found = read_dumps([tmp_path / "torchdist-stall-x.tar.gz"])
    assert ranks_of(found) == [0, 1, 2, 3]
    assert any("--run-dir" in note for note in found.notes)
    assert any(note.startswith("2 other files inside archives") for note in found.notes)


def test_compressed_one_by_one(tmp_path: Path) -> None:
    """Files that were compressed by themselves are read."""
    for file in write(tmp_path, late_rank()).iterdir():
        (tmp_path / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert ranks_of(read_dumps([tmp_path])) == [0, 1, 2, 3]


def test_what_else_lies_there(tmp_path: Path) -> None:
    """One line for each file that looks like a dump and is none; texts are left to others; pipes are not opened."""
    write(tmp_path, late_rank())
    (tmp_path / "rank_10").write_bytes(b"")
    (tmp_path / "rank_11").write_bytes(pickle.dumps(late_rank()[0], 2)[:-40])
    (tmp_path / "rank_12").write_bytes(pickle.dumps(os.getcwd, 2))
    (tmp_path / "rank_13").write_bytes(pickle.dumps({"model": [1, 2]}, 2))
    (tmp_path / "trace.pkl").write_bytes(pickle.dumps(late_rank()[0], 2))
    (tmp_path / "train.log").write_text("hello\n")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "stdout.log").touch()
    (tmp_path / "broken.tar.gz").write_bytes(b"no tar")
    (tmp_path / "gone").symlink_to("nowhere")
    os.mkfifo(tmp_path / "nccl_trace_rank_0.pipe")
    found = read_dumps([tmp_path])
    assert ranks_of(found) == [0, 1, 2, 3]
    assert {path.name for path in found.other_files} == {"train.log", "config.json", "stdout.log"}
    notes = {Path(note.partition(": ")[0]).name: note for note in found.notes}
    assert notes.keys() == {"rank_10", "rank_11", "rank_12", "rank_13", "trace.pkl", "broken.tar.gz", "gone"}
    assert notes["rank_10"].endswith("it is empty")
    assert "truncated" in notes["rank_11"]
    assert "something other than plain data" in notes["rank_12"]
    assert notes["rank_13"].endswith("it is not a dump of a flight recorder")
    assert notes["trace.pkl"].endswith("neither its name nor its content states a rank")


def test_many_bad_files(tmp_path: Path) -> None:
    """Many files of another kind take a few lines."""
    for number in range(60):
        (tmp_path / f"rank_{number}").write_bytes(b"\x80\x02.")
    found = read_dumps([tmp_path])
    assert (len(found.notes), found.notes[-1]) == (11, "and 50 more files like these")


def test_links(tmp_path: Path) -> None:
    """Links to files are followed, as Kubernetes' volumes have them; links to folders are not: they may be circles."""
    real = write(tmp_path / "real", late_rank())
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in real.iterdir():
        (linked / file.name).symlink_to(file)
    (linked / "again").symlink_to(tmp_path)
    assert ranks_of(read_dumps([linked])) == [0, 1, 2, 3]
    assert read_dumps([linked]).notes == ()


def test_no_permission(tmp_path: Path) -> None:
    """A path that is not there, or cannot be read, is one line."""
    found = read_dumps([tmp_path / "missing", write(tmp_path / "dumps", late_rank())])
    assert ranks_of(found) == [0, 1, 2, 3]
    assert found.notes == (f"{tmp_path}/missing: No such file or directory",)


def test_too_large(tmp_path: Path) -> None:
    """Neither a file nor a member of an archive, nor all of them together, are read beyond a limit."""
    folder = write(tmp_path / "dumps", late_rank())
    pack_zip(folder, tmp_path / "a.zip")
    tar_of("w:gz")(folder, tmp_path / "a.tgz")
    for path in (folder, tmp_path / "a.zip", tmp_path / "a.tgz"):
        found = read_dumps([path], ReadingLimits(file_bytes=100))
        assert (found.dumps, len(found.notes)) == ((), 4)
        assert all("more than 100 bytes" in note for note in found.notes)
    for path in (tmp_path / "a.zip", tmp_path / "a.tgz"):
        notes = read_dumps([path], ReadingLimits(total_bytes=1_500)).notes
        assert any("unpacks to more than" in note for note in notes)


def test_bomb_in_gzip(tmp_path: Path) -> None:
    """A small file that unpacks to gigabytes is given up at the limit."""
    # Without a brace it would be a log, which may be of any size.
    (tmp_path / "rank_0.gz").write_bytes(gzip.compress(b"{") + gzip.compress(bytes(1 << 20)) * 80)
    assert read_dumps([tmp_path]).notes == (f"{tmp_path}/rank_0.gz: it has more than 67108864 bytes",)


def test_two_dumps_of_a_rank(tmp_path: Path) -> None:
    """The newest by its content is used, whatever its file's time, and that is said."""
    dumps = late_rank()
    write(tmp_path, dumps)
    older = document([call(1), call(2, state="scheduled", at_s=2)], {"0": range(4)})
    write(tmp_path / "later", {1: older})
    found = read_dumps([tmp_path])
    assert ranks_of(found) == [0, 1, 2, 3]
    assert found.dumps[1].newest_ns == START_NS + 4 * 10**9
    assert found.notes == (
        f"rank 1: more than one dump; the newest is used; left out: {tmp_path}/later/nccl_trace_rank_1",
    )


def test_files_of_an_earlier_job(tmp_path: Path) -> None:
    """A job of 5 ranks has overwritten the files of some ranks of an earlier one with 8: the rest is kept out."""
    write(tmp_path, late_rank(8))
    write(tmp_path, late_rank(5, steps=7))
    found = read_dumps([tmp_path])
    assert ranks_of(found) == [0, 1, 2, 3, 4]
    [note] = found.notes
    assert note.startswith("3 files are from another job, of ranks 5-7, and left out here; the first is ")


def test_the_same_job_the_day_before(tmp_path: Path) -> None:
    """Two runs of the same shape are distinguished by the hours between them; the newer one is used."""
    day_s = 86_400
    write(tmp_path / "a", late_rank())
    entries = [call(1, at_s=day_s), call(2, state="scheduled", at_s=day_s + 1)]
    write(tmp_path / "b", {rank: document(entries, {"0": range(4)}) for rank in range(4)})
    found = read_dumps([tmp_path])
    assert {Path(one.dump.path).parent.name for one in found.dumps} == {"b"}
    assert found.notes[0].startswith("4 files are from another job, of ranks 0-3")


def test_groups_of_one_name(tmp_path: Path) -> None:
    """Ranks whose groups share a name and no member are of one job: torchcomms names groups by their purpose."""
    done = [call(1), call(2, state="scheduled")]
    write(
        tmp_path, {rank: document(done, {"0": range(4), "tp": [rank // 2 * 2, rank // 2 * 2 + 1]}) for rank in range(4)}
    )
    assert ranks_of(read_dumps([tmp_path])) == [0, 1, 2, 3]


def test_json_and_its_own_rank(tmp_path: Path) -> None:
    """A rank that the content states outranks the name, as the debug server's tools write it."""
    write_json(tmp_path, {7: {**late_rank()[0], "rank": 0}, 1: late_rank()[1]})
    assert ranks_of(read_dumps([tmp_path])) == [0, 1]


def test_all_entries(tmp_path: Path) -> None:
    """For other uses all entries are read; judging keeps those at the end."""
    write(tmp_path, late_rank(steps=300))
    found = read_dumps([tmp_path]).dumps
    assert [len(one.calls) for one in found] == [9, 9, 8, 9]
    whole = read_whole([tmp_path, tmp_path / "rank_1"], found)
    assert {dump.rank: len(dump.entries) for dump in whole} == {0: 301, 1: 301, 2: 300, 3: 301}
    assert [dump.rank for dump in read_whole([tmp_path], found[2:3])] == [2]


def test_in_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many files, several processes read them, with the same outcome as one."""
    write(tmp_path, late_rank(70))
    (tmp_path / "rank_77").write_bytes(b"\x80\x02.")
    (tmp_path / "text").write_bytes(b"{}")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    alone = read_dumps([tmp_path])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert read_dumps([tmp_path]) == alone
    assert len(alone.dumps) == 70 and len(alone.notes) == 1 and len(alone.other_files) == 1
