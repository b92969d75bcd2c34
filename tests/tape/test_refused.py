"""Files that are not tapes, or whose identity no writer makes, are refused with their path and the reason."""

from __future__ import annotations

import dataclasses
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_torchdist.errors import TapeError
from otel_torchdist.formats import TAPE
from otel_torchdist.tape import layout
from otel_torchdist.tape.identity import decode_identity, encode_identity, identify
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.tapes.tapes import new_writer, open_descriptors, settled_descriptors

LATER = layout.VERSION + 1


def forge(path: Path, offset: int, value: bytes) -> None:
    """Write a tape with other bytes in its identity, and a checksum that matches."""
    writer = new_writer(path.parent)
    content = bytearray(writer.view())
    content[offset : offset + len(value)] = value
    end = layout.IDENTITY_SIZE - 8
    content[end : end + 8] = struct.pack("=Q", zlib.crc32(content[:end]))
    path.write_bytes(content)
    writer.close()


def link(path: Path) -> None:
    """Make a link to a tape elsewhere, perhaps another user's."""
    writer = new_writer(path.parent)
    path.symlink_to(writer.path)
    writer.close()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(lambda path: None, "No such file", id="missing"),
        pytest.param(Path.touch, "truncated: 0 bytes", id="empty"),
        pytest.param(lambda path: path.write_text("all work and no play\n" * 1000), "not a tape", id="text"),
        pytest.param(Path.mkdir, "cannot be opened", id="directory"),
        pytest.param(os.mkfifo, "not a regular file", id="pipe whose other end nobody opens"),
        pytest.param(link, "cannot be opened: Too many levels of symbolic links", id="link"),
        pytest.param(
            lambda path: forge(path, 8, struct.pack("=I", LATER)),
            TAPE.refusal(LATER),
            id="later version",
        ),
        pytest.param(lambda path: forge(path, 0, layout.MAGIC.to_bytes(8, "big")), "byte order", id="other byte order"),
    ],
)
def test_no_tape(memory: Path, make: Callable[[Path], object], reason: str) -> None:
    """The error names path and reason, and no descriptor stays open."""
    path = memory / "some.tape"
    make(path)
    before = settled_descriptors()
    with pytest.raises(TapeError, match=reason) as refusal:
        TapeReader(path)
    assert str(path) in str(refusal.value)
    del refusal
    assert open_descriptors() == before


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        *[("capacity", value, f"cannot hold {value} records") for value in (0, 7, layout.CHECK_MODULUS, 1 << 40)],
        ("world_size", layout.MAX_RANKS + 1, "of 1048577 in process"),  # readers list the ranks that are missing
        ("world_size", 1 << 62, "damaged"),
        ("rank", 1 << 40, "damaged"),
        ("monotonic_ns", (1 << 64) - 1, "damaged"),
    ],
)
def test_identity_that_cannot_be(field: str, value: int, reason: str) -> None:
    """Numbers that no job has are damage, also under a right checksum: their spans could not be exported."""
    block = encode_identity(dataclasses.replace(identify(0, 0, 1, 64), **{field: value}))
    with pytest.raises(TapeError, match=reason):
        decode_identity(block, "here")


def test_largest_world() -> None:
    """A world of as many ranks as any job may have is read."""
    identity = dataclasses.replace(identify(0, 0, 1, 64), world_size=layout.MAX_RANKS)
    assert decode_identity(encode_identity(identity), "here").world_size == 1 << 20
