"""Archives that anyone may have packed: small ones that unpack to gigabytes, and every format of GNU tar."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import subprocess
import tarfile
import time
import tracemalloc
import weakref
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from otel_torchdist.sources.flight.reading import parallel, tars
from otel_torchdist.sources.flight.reading.archives import MAX_NAME, members_of
from otel_torchdist.sources.flight.reading.limits import ReadingLimits
from otel_torchdist.sources.flight.reading.reader import FoundDumps, read_dumps
from otel_torchdist.system.files.unpacking import UnpackBudget
from tests.sources.flight.made_dumps import late_rank, write

MIB = 1 << 20


def header(kind: bytes, size: int, name: str = "rank_0") -> bytes:
    """The first block of a member, or of a header before one."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.size = kind, size
    return entry.tobuf(tarfile.GNU_FORMAT)


def padded(content: bytes) -> bytes:
    """Content, in whole blocks."""
    return content + bytes(-len(content) % 512)


def sparse(stored: bytes, size: int, name: str) -> bytes:
    """A sparse member of GNU's format, of which only the beginning is stored."""
    block = bytearray(header(b"S", len(stored), name))
    block[386:410] = b"%011o\0%011o\0" % (0, len(stored))
    block[483:495] = b"%011o\0" % size
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + padded(stored)


def notes_of(path: Path, **limits: int) -> list[str]:
    """Return the reported problem, without the path, under other limits than usual."""
    return [note.replace(str(path), "PATH") for note in read_dumps([path], ReadingLimits(**limits)).notes]


def read_in_mib(path: Path) -> tuple[FoundDumps, int]:
    """Read dumps; also returns the MiB that this has taken at most."""
    tracemalloc.start()
    try:
        found = read_dumps([path])
        return found, tracemalloc.get_traced_memory()[1] >> 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g"])
def test_long_header(tmp_path: Path, kind: bytes) -> None:
    """A name or an attribute of many MiB ends reading; it is not taken into memory."""
    path = tmp_path / "a.tar.gz"
    size = 256 * MIB
    parts = [header(kind, size), *[b"a" * MIB] * 256, header(b"0", 0) + bytes(1024)]
    packed = {part: gzip.compress(part, 1) for part in set(parts)}
    path.write_bytes(b"".join(packed[part] for part in parts))
    found, taken_mib = read_in_mib(path)
    assert found.notes == (f"{path}: a header in it has more than 1 MiB; the rest is not read",)
    assert taken_mib < 80


def test_headers_without_end(tmp_path: Path) -> None:
    """However many headers stand before a member: no recursion, and an end at the limit."""
    path = tmp_path / "a.tar"
    long_name = header(b"L", 4, "././@LongLink") + padded(b"abc\0")
    path.write_bytes(long_name * 2500 + header(b"0", 1) + padded(b"{") + bytes(1024))
    assert notes_of(path, free_headers=MIB) == [
        "PATH: the headers of 0 members have more than 1,048,512 bytes; the rest is not read"
    ]
    [note] = notes_of(path)
    assert note.startswith("PATH/abc: ")


def test_digits_in_a_header(tmp_path: Path) -> None:
    """A header of digits takes no quadratic time."""
    path = tmp_path / "a.tar"
    path.write_bytes(header(b"x", 30_000) + padded(b"1" * 30_000) + header(b"0", 1) + padded(b"{") + bytes(1024))
    begun = time.thread_time()
    assert notes_of(path) == ["PATH: it is damaged (an extended header is wrong)"]
    assert time.thread_time() - begun < 0.5


def test_sparse_members(tmp_path: Path) -> None:
    """Zeros that are not stored count as output."""
    path = tmp_path / "a.tar.gz"
    members = b"".join(sparse(b"{" + b" " * 511, 9 * MIB, f"rank_{rank}") for rank in range(10))
    path.write_bytes(gzip.compress(members + bytes(1024)))
    notes = notes_of(path, free_bytes=40 * MIB)
    assert len(notes) == 5
    assert "PATH: it unpacks to more than 250 times its size and more than 40 MiB" in notes[0]


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tar.xz", "a.tar.bz2", "a.zip"])
def test_ratio(tmp_path: Path, name: str) -> None:
    """A small archive is read up to a fixed size, and a folder of them too; a large one in proportion."""
    content = b"{" + bytes(9 * MIB)
    if name.endswith(".zip"):
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as packed:
            for rank in range(8):
                packed.writestr(f"rank_{rank}", content)
    else:
        pack = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}[name.rpartition(".")[2]]
        tar = b"".join(header(b"0", len(content), f"rank_{rank}") + padded(content) for rank in range(8))
        (tmp_path / name).write_bytes(pack(tar + bytes(1024)))
    shutil.copy(tmp_path / name, tmp_path / f"b{name}")
    notes = read_dumps([tmp_path], ReadingLimits(free_bytes=20 * MIB)).notes
    assert [note for note in notes if "not read" in note] == [
        f"{path}: it unpacks to more than 250 times its size and more than 20 MiB; the rest is not read: unpack it to "
        "have it read"
        for path in (tmp_path / name, tmp_path / f"b{name}")
    ]
    assert len(notes) <= 8  # of 16 members


def test_bzip2_in_zip(tmp_path: Path) -> None:
    """A member that bzip2 makes a million times smaller is not unpacked as a whole; a sound one is read."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_BZIP2) as packed:
        packed.writestr("rank_0", b"{" + bytes(128 * MIB))
        for file in write(tmp_path / "dumps", late_rank()).iterdir():
            packed.write(file, f"job/{file.name}")
    found, taken_mib = read_in_mib(tmp_path / "a.zip")
    assert [dump.rank for dump in found.dumps] == [0, 1, 2, 3]
    assert found.notes == (f"{tmp_path}/a.zip/rank_0: it has more than 67108864 bytes",)
    assert taken_mib < 120


def test_equal_compressed_members(tmp_path: Path) -> None:
    """Compressed members that the archive makes small again are not all unpacked; different ones are."""
    bomb = gzip.compress(b"{" + bytes(8 * MIB))
    tar = b"".join(header(b"0", len(bomb), f"rank_{rank}.gz") + padded(bomb) for rank in range(40))
    (tmp_path / "a.tar.xz").write_bytes(lzma.compress(tar + bytes(1024)))
    notes = notes_of(tmp_path / "a.tar.xz", free_compressed=100_000)
    assert notes[0] == (
        "PATH: its compressed members have more than 4 times its size; the rest is not read: unpack it to have it read"
    )
    assert len(notes) < 20
    files = [(f"rank_{rank}.gz", gzip.compress(b"x" + os.urandom(9_000))) for rank in range(40)]
    tar = b"".join(header(b"0", len(content), name) + padded(content) for name, content in files)
    (tmp_path / "b.tar.xz").write_bytes(lzma.compress(tar + bytes(1024)))
    [other, *_] = notes_of(tmp_path / "b.tar.xz", free_compressed=100_000)
    assert other == "40 other files inside archives: unpack them to have them read"


def test_table_of_contents(tmp_path: Path) -> None:
    """A zip's table of contents is bounded, and so is the number of members."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        for rank in range(1000):
            packed.writestr(f"rank_{rank}", b"")
    notes = notes_of(tmp_path / "a.zip", members=10)
    assert (notes[0], len(notes)) == ("PATH: it has more than 10 members; the rest is not read", 11)
    [note] = notes_of(tmp_path / "a.zip", contents_bytes=10_000)
    assert note.startswith("PATH: its table of contents has more than")


@pytest.mark.parametrize("content", [b"", b"no tar", bytes(700), header(b"0", 5000) + b"x" * 600, b"x" * 512])
def test_damaged(tmp_path: Path, content: bytes) -> None:
    """A file that is no whole tar gets one sentence, unless it is an empty one."""
    path = tmp_path / "a.tar"
    path.write_bytes(content)
    assert len(notes_of(path)) == (0 if content == bytes(700) else 1)


FORMATS = [
    ["--format=v7"], ["--format=ustar"], ["--format=gnu"], ["--format=pax"], ["--format=gnu", "--label=a"],
    ["--format=gnu", "--hole-detection=raw"],
    *(["--format=pax", "--hole-detection=raw", f"--sparse-version={version}"] for version in ("0.0", "0.1", "1.0")),
]  # fmt: skip


@pytest.mark.skipif(shutil.which("tar") is None, reason="there is no GNU tar")
@pytest.mark.parametrize("options", FORMATS, ids=" ".join)
def test_formats(tmp_path: Path, options: list[str]) -> None:
    """Each format that GNU tar writes is read as `tarfile` reads it: long names, links, holes, other files."""
    folder = tmp_path / "job"
    deep = folder / ("long" * 20) / ("folder" * 12) / ("x" * 90)
    deep.mkdir(parents=True)
    (deep / "rank_0").write_bytes(b"deep")
    (folder / ("f" * 140)).write_bytes(b"a long name")
    (folder / "empty").touch()
    (folder / "block").write_bytes(b"z" * 512)
    (folder / "link").symlink_to("block")
    os.link(folder / "block", folder / "linked")
    os.mkfifo(folder / "pipe")
    for name, parts, size in (("hole", 0, 70_000), ("some", 3, 500_000), ("many", 40, 6_000_000), ("end", 2, 0)):
        with open(folder / name, "wb") as file:
            for part in range(parts):
                file.seek((part + 1) << 17)
                file.write(b"part %d" % part * 99)
            file.truncate(size or file.tell())
    path = tmp_path / "a.tar"
    subprocess.run(["tar", "-C", tmp_path, "-cf", path, *options, "job"], check=False)
    with tarfile.open(path) as archive:
        files = [(member, archive.extractfile(member)) for member in archive if member.isreg()]
        expected = [(member.name, file.read()) for member, file in files if file is not None]
    assert len(expected) >= 6
    assert list(members_of(path, 64 * MIB, UnpackBudget())) == expected


class Weighed:
    """A file that is known to be in memory."""

    alive: ClassVar[weakref.WeakSet[Weighed]] = weakref.WeakSet()

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.alive.add(self)


def weigh(file: Weighed) -> int:
    """Read a file."""
    return file.weight


def count_alive(_: Weighed) -> int:
    """Return how many files are in memory."""
    return len(Weighed.alive)


def test_few_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members of archives are read one by one; large ones do not queue up for other processes."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert max(parallel.read_each(count_alive, (Weighed(1) for _ in range(64)))) <= 2
    made = 0

    def files() -> Iterator[Weighed]:
        nonlocal made
        for _ in range(40):
            made += 1
            yield Weighed(64 * MIB)

    ahead = [made - done for done, _ in enumerate(parallel.read_each(weigh, files(), unpooled=0))]
    assert len(ahead) == 40
    assert max(ahead) <= parallel.MAX_WAITING_BYTES // (64 * MIB) + 2


def test_names_are_bounded(tmp_path: Path) -> None:
    """Of a name of many folders, its end is used."""
    path = tmp_path / "a.tar"
    name = b"d/" * 200_000 + b"rank_0"
    path.write_bytes(header(b"L", len(name)) + padded(name) + header(b"0", 1) + padded(b"{") + bytes(1024))
    [(found, _)] = members_of(path, 9, UnpackBudget())
    assert len(found) == MAX_NAME and found.endswith("d/rank_0")
    assert len(name) < tars.MAX_EXTENDED
