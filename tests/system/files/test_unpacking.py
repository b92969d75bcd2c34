"""Decompressing files of others: all of gzip, at a bounded cost."""

from __future__ import annotations

import gzip
import io
import random
import time
import zlib

import pytest

from otel_torchdist.system.files.unpacking import (
    MAX_RATIO,
    GzipStream,
    MeteredFile,
    TooLargeError,
    UnpackBudget,
    gunzip,
    gunzip_start,
)


def cpu_s(content: bytes) -> float:
    """CPU time to decompress, the shorter of two runs."""
    times: list[float] = []
    for _ in range(2):
        begun = time.thread_time()
        gunzip(content, 1 << 30)
        times.append(time.thread_time() - begun)
    return min(times)


@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 20])
def test_members(size: int) -> None:
    """Members of any size follow one another, with zeros between and behind them, whatever size is read at a time."""
    chosen = random.Random(7)
    parts = [chosen.randbytes(chosen.choice((0, 1, 600))) * chosen.choice((1, 9)) for _ in range(40)]
    content = b"".join(gzip.compress(part) + bytes(chosen.choice((0, 0, 5, 2000))) for part in parts)
    assert gzip.decompress(content) == b"".join(parts)
    stream, found = GzipStream(io.BytesIO(content)), b""
    while part := stream.read(size):
        assert len(part) <= size
        found += part
    assert found == b"".join(parts)


def test_damage() -> None:
    """The output before the damage is returned, and the damage too."""
    text = b"".join(b"iteration %d\n" % number for number in range(50_000))
    content = gzip.compress(text)
    whole, error = gunzip(content[:-4], 1 << 20)
    assert (whole, type(error)) == (text, EOFError)
    part, error = gunzip(content[: len(content) // 2], 1 << 20)
    assert text.startswith(part) and len(part) > 1000 and type(error) is EOFError
    assert type(gunzip(b"\x1f\x8b\x08 no", 9)[1]) is zlib.error
    assert gunzip(content + b"garbage", 1 << 20)[0] == text
    assert gunzip_start(io.BytesIO(content[:900]), 64) == text[:64]
    assert gunzip_start(io.BytesIO(b"\x1f\x8b\x08 no"), 64) == b""


def test_tiny_members() -> None:
    """A file of tiny members takes time in proportion to their number, each copies only some bytes behind it."""
    few, many = (gzip.compress(b"") * count for count in (10_000, 80_000))
    assert cpu_s(many) < 24 * cpu_s(few)


def test_long_name() -> None:
    """A name of megabytes in a header costs what its bytes cost, not a step of Python for each of them."""
    packed = gzip.compress(b"{}" * 1000)
    content = packed[:3] + b"\x08" + packed[4:10] + b"a" * (8 << 20) + b"\0" + packed[10:]
    assert gunzip(content, 1 << 20) == (b"{}" * 1000, None)
    assert cpu_s(content) < 0.5


def test_allowance() -> None:
    """The output is bounded by the input that was read, over all files together."""
    allowance = UnpackBudget(free_bytes=1000)
    MeteredFile(io.BytesIO(bytes(50)), allowance).read(20)
    allowance.take(1000 + 20 * MAX_RATIO)
    MeteredFile(io.BytesIO(bytes(50)), allowance).read(1)
    with pytest.raises(TooLargeError):
        allowance.take(MAX_RATIO + 1)
    allowance.give(1)
    allowance.take(MAX_RATIO - 1)  # a bomb does not use up what later files bring with them
