"""Files that are not tapes, or are tapes of another version, are refused with their path and the reason."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import pytest

from otel_torchdist.errors import TapeError
from otel_torchdist.tape import layout
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.tapes.tapes import new_writer, open_descriptors, settled_descriptors


def forged(directory: Path, offset: int, value: bytes) -> Path:
    """A tape with other bytes in its identity, and a checksum that matches."""
    writer = new_writer(directory)
    content = bytearray(writer.view())
    content[offset : offset + len(value)] = value
    end = layout.IDENTITY_SIZE - 8
    content[end : end + 8] = struct.pack("=Q", zlib.crc32(content[:end]))
    path = directory / "forged.tape"
    path.write_bytes(content)
    writer.close()
    return path


def assert_refused(path: Path, reason: str) -> None:
    """The error names path and reason, and no descriptor stays open."""
    before = settled_descriptors()
    with pytest.raises(TapeError, match=reason) as refusal:
        TapeReader(path)
    assert str(path) in str(refusal.value)
    del refusal
    assert open_descriptors() == before


def test_unknown_version(memory: Path) -> None:
    """The error names the later version of the format, and the one that is known."""
    later, known = layout.VERSION + 1, layout.VERSION
    assert_refused(
        forged(memory, 8, struct.pack("=I", later)), f"version {later} of the format; this reader knows {known}"
    )


def test_other_byte_order(memory: Path) -> None:
    """A tape of a machine with another byte order is not read as nonsense."""
    assert_refused(forged(memory, 0, layout.MAGIC.to_bytes(8, "big")), "byte order")


@pytest.mark.parametrize("capacity", [0, 7, layout.CHECK_MODULUS, 1 << 40])
def test_impossible_capacity(memory: Path, capacity: int) -> None:
    """A ring size that no writer makes is damage, even under a right checksum."""
    # Behind magic, version and size, pid and the like: the twelfth field.
    offset = struct.calcsize("=QIIQQQQQQqqQ")
    assert_refused(forged(memory, offset, struct.pack("=Q", capacity)), f"cannot hold {capacity} records")


def test_impossible_world(memory: Path) -> None:
    """A world of more ranks than any job has is damage: readers list the ranks that are missing."""
    offset = struct.calcsize("=QIIQQQQQQqq")  # the field before the capacity
    assert TapeReader(forged(memory, offset, struct.pack("=Q", layout.MAX_RANKS))).identity.world_size == 1 << 20
    assert_refused(forged(memory, offset, struct.pack("=Q", layout.MAX_RANKS + 1)), "of 1048577 in process")


def test_empty_file(memory: Path) -> None:
    """An empty file is truncated."""
    path = memory / "empty.tape"
    path.touch()
    assert_refused(path, "truncated: 0 bytes")


def test_text_file(memory: Path) -> None:
    """A text is not a tape."""
    path = memory / "text.tape"
    path.write_text("all work and no play\n" * 1000)
    assert_refused(path, "not a tape")


def test_directory(memory: Path) -> None:
    """A directory is not a tape."""
    path = memory / "directory.tape"
    path.mkdir()
    assert_refused(path, "cannot be opened")


def test_named_pipe(memory: Path) -> None:
    """A named pipe is refused at once, without waiting for its other end."""
    path = memory / "pipe.tape"
    os.mkfifo(path)
    assert_refused(path, "not a regular file")


def test_missing(memory: Path) -> None:
    """A missing file is an error like the others."""
    assert_refused(memory / "missing.tape", "No such file")
