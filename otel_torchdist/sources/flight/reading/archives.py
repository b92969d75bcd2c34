"""Reads the members of an untrusted archive: member paths are never opened, and sizes are bounded."""

from __future__ import annotations

import bz2
import contextlib
import copy
import importlib
import io
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from otel_torchdist.sources.flight.reading.limits import DEFAULT_LIMITS, ArchiveLimits, ReadingLimits, UnreadableError
from otel_torchdist.sources.flight.reading.tars import read_tar
from otel_torchdist.system.files.unpacking import GzipStream, MeteredFile, Readable, UnpackBudget

MAX_NAME: Final = 4096
"""Characters kept at the end of a member's name: PATH_MAX of Linux."""
_TAR_SUFFIXES: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
_ZIP_SUFFIX: Final = ".zip"
_GZIP: Final = b"\x1f\x8b"
_PIECE: Final = 64 << 10
_SMALL_PIECE: Final = 4 << 10
"""Compressed bytes read at once with LZMA and Zstandard, whose output `zipfile` does not limit."""
_BOUNDED: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
_DAMAGE: Final = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, NotImplementedError)


def is_archive(name: str) -> bool:
    """Return whether a file is an archive, by its name."""
    return name.lower().endswith((*_TAR_SUFFIXES, _ZIP_SUFFIX))


def members_of(
    archive: Path, max_bytes: int, budget: UnpackBudget, limits: ReadingLimits = DEFAULT_LIMITS
) -> Iterator[tuple[str, bytes | None]]:
    """Yield name and content of each regular file in an archive; None for the content of more than `max_bytes`.

    Args:
        archive: A file for which `is_archive` is true.
        max_bytes: Maximum bytes of one member.
        budget: Remaining budget for unpacked bytes.
        limits: The limits for one archive.

    Raises:
        UnreadableError: It is damaged or too large, or this Python cannot read its compression.
        TooLargeError: Its content exceeds the budget.
        OSError: It cannot be read.
    """
    with open(archive, "rb") as file:
        counters = ArchiveLimits(os.fstat(file.fileno()).st_size, budget, limits)
        read = _read_zip if archive.name.lower().endswith(_ZIP_SUFFIX) else _read_tar
        try:
            for name, content in read(file, archive.name.lower(), max_bytes, counters):
                if content is not None and content.startswith(_GZIP):
                    counters.add_compressed(len(content))
                yield name[-MAX_NAME:], content
        except _DAMAGE as error:
            raise UnreadableError(f"it is damaged ({error or type(error).__name__})") from error


_Members = Iterator[tuple[str, bytes | None]]


def _read_zip(file: BinaryIO, _name: str, max_bytes: int, limits: ArchiveLimits) -> _Members:
    with zipfile.ZipFile(_LimitedFile(file, limits)) as opened:  # type: ignore[arg-type]
        for member in opened.infolist():
            if member.is_dir():
                continue
            limits.add_member()
            if member.flag_bits & 1:
                raise UnreadableError("it is encrypted")
            with _member(opened, member) as stream:  # its stated length is not trusted
                piece = _PIECE if member.compress_type in _BOUNDED else _SMALL_PIECE
                yield member.filename, _read_bounded(stream, piece, max_bytes, limits)


@contextlib.contextmanager
def _member(opened: zipfile.ZipFile, member: zipfile.ZipInfo) -> Generator[Readable]:
    if member.compress_type != zipfile.ZIP_BZIP2:
        with opened.open(member) as stream:
            yield stream
        return
    # 4 KiB of bzip2 can be gigabytes: open the compressed bytes, and decompress them within limits.
    stored = copy.copy(member)
    stored.compress_type, stored.file_size = zipfile.ZIP_STORED, member.compress_size
    stored.CRC = cast(Any, None)  # it covers the decompressed bytes
    with opened.open(stored) as packed, bz2.open(packed) as stream:
        yield stream


def _read_bounded(stream: Readable, piece: int, max_bytes: int, limits: ArchiveLimits) -> bytes | None:
    """Read a member of a zip in pieces. Return None if it has more than `max_bytes`."""
    content = io.BytesIO()
    while part := stream.read(min(piece, max_bytes + 1 - content.tell())):
        limits.add_output(len(part))
        content.write(part)
        if content.tell() > max_bytes:
            return None
    return content.getvalue()


class _LimitedFile:
    """The file of a zip. A large central directory is refused."""

    def __init__(self, file: BinaryIO, limits: ArchiveLimits) -> None:
        self._counted = MeteredFile(file, limits)
        self._max_contents_bytes = limits.limits.contents_bytes
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        """Read at most `size` bytes."""
        if size > self._max_contents_bytes:
            raise UnreadableError(
                f"its table of contents has more than {self._max_contents_bytes >> 20} MiB; it is not read"
            )
        return self._counted.read(size)


def _read_tar(file: BinaryIO, name: str, max_bytes: int, limits: ArchiveLimits) -> _Members:
    with _unpacked(MeteredFile(file, limits), name) as stream:
        yield from read_tar(_CountedOutput(stream, limits), max_bytes, limits)


@contextlib.contextmanager
def _unpacked(file: MeteredFile, name: str) -> Generator[Readable]:
    if name.endswith("gz"):
        yield GzipStream(file)
    elif name.endswith("bz2"):
        with bz2.open(file) as stream:  # type: ignore[arg-type]
            yield stream
    elif name.endswith("xz"):
        with lzma.open(file) as stream:  # type: ignore[arg-type]
            yield stream
    elif name.endswith(".zst"):
        with _zstd().open(file) as stream:
            yield stream
    else:
        yield file


def _zstd() -> Any:
    try:
        return importlib.import_module("compression.zstd")
    except ImportError as error:
        raise UnreadableError("Python reads zstd only from 3.14 on: unpack it first") from error


class _CountedOutput:
    """The decompressed stream of a tar, with counted bytes."""

    def __init__(self, stream: Readable, limits: ArchiveLimits) -> None:
        self._stream = stream
        self._limits = limits

    def read(self, size: int, /) -> bytes:
        """Read at most `size` bytes."""
        content = self._stream.read(size)
        self._limits.add_output(len(content))
        return content
