"""Files of an archive, RUN/NODE/*.segments, and the segments in a file."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from otel_torchdist.formats import ARCHIVE
from otel_torchdist.sources.archive.format import HEAD_SIZE, MAGIC, Head, decode_head, format_of
from otel_torchdist.sources.archive.segment import SegmentLocation, SegmentOrigin
from otel_torchdist.system.files.others import open_regular

SUFFIX: Final = ".segments"
_MIN_SEARCHED: Final = 256
_MAX_SEARCHED: Final = 1 << 20
"""Bytes read at once when searching for the next segment behind damaged bytes."""
_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9.-]")
_MAX_HOST: Final = 64


def folder_of(archive: Path, origin: SegmentOrigin) -> Path:
    """Return the folder of a run and node. The boot id distinguishes nodes with equal host names."""
    host = _UNUSUAL.sub("_", origin.host[:_MAX_HOST]) or "host"
    return archive / f"run-{origin.run_id:032x}" / f"{host}-{origin.boot_id >> 96:08x}"


def new_file(folder: Path) -> Path:
    """Return the path of a file that no other process writes. Paths sort by the time of their creation."""
    return folder / f"{time.time_ns():019d}-{os.urandom(4).hex()}{SUFFIX}"


def files_in(folder: Path) -> list[tuple[Path, int]]:
    """Return the files of a node's folder and their sizes in bytes, oldest first.

    Raises:
        OSError: The folder cannot be read.
    """
    files: list[tuple[Path, int]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # another process has just removed it
                if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                    files.append((Path(entry), entry.stat(follow_symlinks=False).st_size))
    return sorted(files)


def segments_in(path: Path, notes: list[str]) -> Iterator[SegmentLocation]:
    """Yield the locations of the segments in a file, in order. Damaged bytes are skipped, with a line in `notes`.

    Raises:
        OSError: The file cannot be read.
        OtherFormatError: The file has another format: each file is of one process, and so of one version.
    """
    file = open_regular(path)
    try:
        size, offset = os.fstat(file).st_size, 0
        number = format_of(os.pread(file, len(MAGIC), 0))
        if number is not None:
            ARCHIVE.check(number, str(path))
        damage_offset: int | None = None
        is_cut_off = False
        while offset < size:
            head = decode_head(os.pread(file, HEAD_SIZE, offset))
            if head is not None and offset + HEAD_SIZE + head.size <= size:
                if damage_offset is not None:
                    lost = offset - damage_offset
                    notes.append(f"{path}: {lost:,} bytes from byte {damage_offset:,} on are damaged: skipped")
                    damage_offset = None
                yield _location(head, path, offset)
                offset += HEAD_SIZE + head.size
                continue
            if damage_offset is None:
                damage_offset = offset
                is_cut_off = head is not None or size - offset < HEAD_SIZE
            offset = _next_magic(file, offset + 1, size)
        if damage_offset is not None:
            damage = "its last segment is cut off" if is_cut_off else "damaged"
            notes.append(f"{path}: {damage}: {size - damage_offset:,} bytes at its end are skipped")
    finally:
        os.close(file)


def _location(head: Head, path: Path, offset: int) -> SegmentLocation:
    return SegmentLocation(
        path, offset, head.size, head.nonce, head.run_id, head.rank, head.rows[0], head.first_unread, head.begun_ns,
        head.checksum,
    )  # fmt: skip


def read_segment(location: SegmentLocation) -> bytes:
    """Read a segment.

    Raises:
        OSError: The file cannot be read.
    """
    file = open_regular(location.path)
    try:
        return os.pread(file, HEAD_SIZE + location.size, location.offset)
    finally:
        os.close(file)


def _next_magic(file: int, offset: int, size: int) -> int:
    """Return the offset where the next segment may begin; the size of the file if there is none.

    The bytes read at once double each time: a forged file may have the magic at every eighth byte.
    """
    ahead = _MIN_SEARCHED
    while offset < size:
        content = os.pread(file, ahead + len(MAGIC), offset)
        position = content.find(MAGIC)
        if position >= 0:
            return offset + position
        if len(content) <= ahead:
            break
        offset += ahead
        ahead = min(2 * ahead, _MAX_SEARCHED)
    return size
