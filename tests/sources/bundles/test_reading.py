"""Bundles that are damaged, forged or something else."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import msgspec
import pytest

from otel_torchdist.model.rank_state.lives import Stopped
from otel_torchdist.model.rank_state.occupations import ChildWait
from otel_torchdist.node.job.bundled import (
    MAX_BYTES,
    BundledMoment,
    BundleManifest,
    RunningRank,
    read_copy,
)
from otel_torchdist.sources.bundles.reading import manifest_of, unpack
from otel_torchdist.tape.identity import shares_pids
from otel_torchdist.tape.reading.reader import TapeReader
from tests.sources.bundles.written import evidence, folder, job

MANIFEST = msgspec.json.encode(BundleManifest(1, "12" * 16, "node7", "end"))


def forged(path: Path, members: dict[str, bytes]) -> Path:
    """A bundle with these members, after its manifest."""
    with tarfile.open(path, "w:gz") as bundle:
        for name, content in {"b/job-1/bundle.json": MANIFEST, **members}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            bundle.addfile(entry, io.BytesIO(content))
        link = tarfile.TarInfo("b/job-1/link.tape")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        bundle.addfile(link)
    return path


def test_whole_bundle(tmp_path: Path) -> None:
    """The unpacked job directory is equal to the original, apart from the process that wrote the tapes."""
    directory = job(tmp_path / "job-1", ranks=2)
    path = folder(tmp_path / "bundles").write(evidence(directory))
    (tmp_path / "unpacked").mkdir()
    bundle = unpack(path, tmp_path / "unpacked")
    assert bundle is not None
    assert (bundle.notes, bundle.directory) == ((), tmp_path / "unpacked" / "job-1")
    for file in directory.glob("*.names"):
        copy = bundle.directory / file.name
        assert copy.read_bytes() == file.read_bytes()
        assert copy.stat().st_mtime_ns == file.stat().st_mtime_ns
    for file in directory.glob("*.tape"):
        tape, original = TapeReader(bundle.directory / file.name), TapeReader(file)
        assert not shares_pids(tape.identity)
        assert shares_pids(original.identity)
        records = [[operation for batch in one.poll_to_end() for operation in batch.ended] for one in (tape, original)]
        assert records[0] == records[1]
        assert tape.identity.nonce == original.identity.nonce
        tape.close()
        original.close()
    copy = read_copy(bundle.directory)
    assert copy is not None
    assert (copy.place, copy.running) == (str(path), {})
    assert read_copy(directory) is None


def test_hostile_names(tmp_path: Path) -> None:
    """No member leaves the directory, whatever its name; links are not made."""
    path = forged(
        tmp_path / "x.tar.gz",
        {
            "b/../../outside": b"x",
            "/b/job-1/absolute": b"x",
            "b/job-1/../outside": b"x",
            "b/job-1/..": b"x",
            "b/job-1/.hidden": b"x",
            "b/job-2/other.tape": b"x",
            "b/job-1/deep/er": b"x",
            "b/job-1/good.names": b"good",
        },
    )
    inside = tmp_path / "inside"
    inside.mkdir()
    bundle = unpack(path, inside)
    assert bundle is not None
    assert sorted(file.relative_to(inside).as_posix() for file in inside.rglob("*")) == [
        "job-1", "job-1/bundle.json", "job-1/good.names", "job-1/unpacked-from",
    ]  # fmt: skip
    assert sorted(os.listdir(tmp_path)) == ["inside", "x.tar.gz"]


def test_cut_off_bundle(tmp_path: Path) -> None:
    """A truncated bundle is read up to the damage, with a line that says so."""
    path = folder(tmp_path / "bundles").write(evidence(job(tmp_path / "job-1", operations=5_000, capacity=8192)))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (tmp_path / "unpacked").mkdir()
    bundle = unpack(path, tmp_path / "unpacked")
    assert bundle is not None
    [note] = bundle.notes
    assert note.startswith(f"{path}: ")
    assert note.endswith(": everything before that is used")
    assert read_copy(bundle.directory) is None  # without the state of processes it is an ordinary copy


@pytest.mark.parametrize(
    "moment",
    [
        b"",
        b"[]",
        b'{"taken_ns": -1, "running": []}',
        b'{"taken_ns": 1, "running": [{"nonce": "../../etc/passwd"}]}',
        b'{"taken_ns": 1, "running": [{"nonce": "0123456789abcdef", "stopped": "TT"}]}',
        b'{"taken_ns": 1, "running": [{"nonce": "0123456789abcdef", "ran_ns": 1e400}]}',
        b"[" * 100_000,
        b" " * (MAX_BYTES + 1),
    ],
)
def test_bad_moment(tmp_path: Path, moment: bytes) -> None:
    """A state that does not fit its type is no state; nothing is raised."""
    path = forged(tmp_path / "x.tar.gz", {"b/job-1/moment.json": moment})
    bundle = unpack(path, tmp_path)
    assert bundle is not None
    assert read_copy(bundle.directory) is None


def test_texts_are_displayable(tmp_path: Path) -> None:
    """Escape sequences in a forged bundle do not reach a terminal."""
    child = ChildWait(7, "a\x1b[2J", "b\n", 5)
    moment = BundledMoment(9, (RunningRank("0123456789abcdef", "T", 4, 3, child), RunningRank("f" * 16, "R")))
    (tmp_path / "moment.json").write_bytes(msgspec.json.encode(moment))
    manifest = BundleManifest(1, "12" * 16, "node\x1b7", "end")
    (tmp_path / "bundle.json").write_bytes(msgspec.json.encode(manifest))
    copy = read_copy(tmp_path)
    assert copy is not None
    rank, other = copy.running[0x0123456789ABCDEF], copy.running[0xFFFF_FFFF_FFFF_FFFF]
    assert rank.child == ChildWait(7, r"a\x1b[2J", r"b\n", 5)
    assert rank.not_running == Stopped("T", 4)
    assert other.not_running is None  # not a state in which a process stands still
    assert copy.manifest.host == r"node\x1b7"


def test_other_files(tmp_path: Path) -> None:
    """Other archives, and archives only named like a bundle, are not bundles."""
    (tmp_path / "torchdist-bundle-x.tar.gz").write_bytes(b"\x1f\x8bnothing")
    with tarfile.open(tmp_path / "logs.tar.gz", "w:gz") as archive:
        archive.add(__file__, "log.txt")
    (tmp_path / "bundle.json").write_bytes(MANIFEST)
    for name in ("torchdist-bundle-x.tar.gz", "logs.tar.gz", "bundle.json", "missing.tar.gz", "."):
        assert manifest_of(tmp_path / name) is None
    assert unpack(tmp_path / "logs.tar.gz", tmp_path) is None
