"""Reads the members of an archive that anyone may have packed: no path is used, and its total size is bounded."""

from __future__ import annotations

import bz2
import gzip
import importlib
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from otel_torchdist.errors import TorchDistError

MAX_TOTAL_BYTES: Final = 8 << 30
MAX_MEMBERS: Final = 100_000
_TARS: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
_ZIP: Final = ".zip"


class UnreadableError(TorchDistError):
    """A file or an archive cannot be read; the message says why."""


def is_archive(name: str) -> bool:
    """Whether a file is an archive, by its name."""
    return name.lower().endswith((*_TARS, _ZIP))


def members_of(archive: Path, most: int) -> Iterator[tuple[str, bytes | None]]:
    """Yield name and content of each regular file in an archive; None for one that is larger than allowed.

    Args:
        archive: A file for which `is_archive` is true.
        most: Maximum bytes of one member.

    Raises:
        UnreadableError: It is damaged or too large, or this Python cannot read its compression.
        OSError: It cannot be read.
    """
    try:
        yield from (_of_zip if archive.name.lower().endswith(_ZIP) else _of_tar)(archive, most)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError) as error:
        raise UnreadableError(f"it is damaged ({error})") from error


def _of_zip(archive: Path, most: int) -> Iterator[tuple[str, bytes | None]]:
    total = 0
    with zipfile.ZipFile(archive) as opened:
        for nth, member in enumerate(opened.infolist()):
            if member.is_dir():
                continue
            if nth >= MAX_MEMBERS:
                raise UnreadableError(f"it has more than {MAX_MEMBERS:,} members; the rest is not read")
            if member.flag_bits & 1:
                raise UnreadableError("it is encrypted")
            with opened.open(member) as stream:  # the length that it states may be a lie
                content = stream.read(most + 1)
            total += len(content)
            if total > MAX_TOTAL_BYTES:
                raise UnreadableError(f"it unpacks to more than {MAX_TOTAL_BYTES >> 30} GiB; the rest is not read")
            yield member.filename, content if len(content) <= most else None


def _of_tar(archive: Path, most: int) -> Iterator[tuple[str, bytes | None]]:
    # As a stream, so that the total is known while it is unpacked; seeking back would unpack it again.
    with _unpacked(archive) as stream, _opened(stream) as opened:
        for nth, member in enumerate(opened):
            if nth >= MAX_MEMBERS:
                raise UnreadableError(f"it has more than {MAX_MEMBERS:,} members; the rest is not read")
            file = opened.extractfile(member) if member.isreg() else None
            if file is not None:
                content = file.read(most + 1)
                yield member.name, content if len(content) <= most else None
            cast(Any, opened).members.clear()  # they would pile up


def _opened(stream: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=cast(Any, _Bounded(stream)), mode="r|")


def _unpacked(archive: Path) -> Any:
    name = archive.name.lower()
    if name.endswith(("gz",)):
        return gzip.open(archive)
    if name.endswith(("bz2",)):
        return bz2.open(archive)
    if name.endswith(("xz",)):
        return lzma.open(archive)
    if not name.endswith(".zst"):
        return open(archive, "rb")
    try:
        zstd: Any = importlib.import_module("compression.zstd")
    except ImportError as error:
        raise UnreadableError("Python reads zstd only from 3.14 on: unpack it first") from error
    return zstd.open(archive)


class _Bounded:
    """A stream that ends with an error when it has delivered too much."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._left = MAX_TOTAL_BYTES

    def read(self, size: int) -> bytes:
        """Read at most `size` bytes."""
        found: bytes = self._stream.read(size)
        self._left -= len(found)
        if self._left < 0:
            raise UnreadableError(f"it unpacks to more than {MAX_TOTAL_BYTES >> 30} GiB; the rest is not read")
        return found
