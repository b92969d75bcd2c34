"""Finds files that may be dumps: in folders, one by one, and in archives. Nothing is extracted to disk."""

from __future__ import annotations

import contextlib
import io
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from otel_torchdist.model.text import readable
from otel_torchdist.sources.flight.reading.archives import is_archive, members_of
from otel_torchdist.sources.flight.reading.limits import DEFAULT_LIMITS, NO_MEMORY, ReadingLimits, UnreadableError
from otel_torchdist.system.files.others import read_regular
from otel_torchdist.system.files.unpacking import TooLargeError, UnpackBudget, gunzip, gunzip_start

MAX_FILES: Final = 100_000
MAX_DEPTH: Final = 8
_START_BYTES: Final = 4096
_GZIP: Final = b"\x1f\x8b"
_PICKLE: Final = b"\x80"
_STARTS: Final = (_PICKLE, b"{", _GZIP)
"""First bytes of a pickle, of JSON, and of a gzip file."""
_TAPE: Final = ".tape"
_OF_TRACES: Final = re.compile(
    rb'"(?:traceEvents|schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds|displayTimeUnit|traceName)"\s*:'
    rb'|"schema"\s*:\s*"'
)
"""Keys near the beginning of a profiler's trace, of any tool, and of an execution trace."""
_OF_CHAKRA: Final = re.compile(rb"[\x80-\xff]{0,3}[\x03-\x7f]\n(?P<length>[\x01-\x20])(?P<version>\d[0-9A-Za-z.+-]*)")
"""Beginning of a Chakra execution trace: a protobuf message whose first field is a version."""
_OF_DUMPS: Final = re.compile(rb"pg_config|pg_status|nccl_comm_state|entries")


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that may be a dump.

    Attributes:
        path: Path for reports: `dumps.tar.gz/job/rank_3` inside an archive.
        name: The last component of the path.
        file: The file; None inside an archive.
        packed: The content of an archive's member; None for a file.
        start: First bytes of the content, decompressed.
    """

    path: str
    name: str
    file: Path | None
    packed: bytes | None = None
    start: bytes = b""

    @property
    def size(self) -> int:
        """Stored size in bytes, compressed or not; 0 if the file has vanished."""
        if self.file is None:
            return len(self.packed or b"")
        with contextlib.suppress(OSError):
            return self.file.stat().st_size
        return 0

    @property
    def weight(self) -> int:
        """Bytes of its content held in memory."""
        return len(self.packed or b"")

    @property
    def is_trace(self) -> bool:
        """Whether the first bytes look like a profiler trace."""
        return self.is_chakra or (not self.start.startswith(_PICKLE) and _OF_TRACES.search(self.start) is not None)

    @property
    def is_chakra(self) -> bool:
        """Whether the first bytes look like an execution trace in Chakra's protobuf format."""
        return _is_chakra(self.start)

    @property
    def is_dump(self) -> bool:
        """Whether keys in the first bytes, not just the file type, identify a dump."""
        return not self.is_trace and _OF_DUMPS.search(self.start) is not None

    def read(self, max_bytes: int) -> bytes:
        """Return the content, decompressed.

        Args:
            max_bytes: Maximum size in bytes, both compressed and decompressed.

        Raises:
            UnreadableError: It cannot be read; the message gives the reason.
        """
        try:
            return _unzipped(self.read_stored(max_bytes), max_bytes)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise UnreadableError(_reason(error)) from error

    def read_stored(self, max_bytes: int) -> bytes:
        """Return the stored content, compressed or not.

        Args:
            max_bytes: Maximum size in bytes.

        Raises:
            UnreadableError: It cannot be read; the message gives the reason.
        """
        try:
            return (self.packed or b"") if self.file is None else read_regular(self.file.resolve(), max_bytes)
        except (OSError, ValueError) as error:
            raise UnreadableError(_reason(error)) from error


@dataclass(slots=True)
class Skipped:
    """The files that are left out.

    Attributes:
        other_files: Files of other kinds, for other readers.
        other_members: Number of files of other kinds inside archives.
        tapes: Number of tapes.
        problems: A line for each unreadable file, with its path.
    """

    other_files: list[Path] = field(default_factory=list[Path])
    other_members: int = 0
    tapes: int = 0
    problems: list[str] = field(default_factory=list[str])


def find_files(paths: Sequence[Path], skipped: Skipped, limits: ReadingLimits = DEFAULT_LIMITS) -> Iterator[FoundFile]:
    """Yield files that may be dumps or traces. They are read lazily, so that only a few are in memory.

    Args:
        paths: Folders, which are searched to a depth of 8, files, and archives.
        skipped: Receives the files left out.
        limits: Bounds on unpacking.
    """
    budget = UnpackBudget(limits.free_bytes)
    for path in paths:
        for file in _files_below(path, skipped) if path.is_dir() else (path,):
            yield from _found_in(file, skipped, limits, budget)


def count_files(paths: Sequence[Path]) -> int | None:
    """Return the number of files at paths; None if some are archives, whose members would have to be unpacked."""
    count = 0
    for path in paths:
        for file in _files_below(path, Skipped()) if path.is_dir() else (path,):
            if is_archive(file.name):
                return None
            count += 1
    return count


def _files_below(folder: Path, skipped: Skipped) -> Iterator[Path]:
    count = 0
    depth = len(folder.parts)

    def add_problem(error: OSError) -> None:
        skipped.problems.append(f"{readable(str(error.filename))}: {error.strerror}")

    for parent, folders, names in os.walk(folder, onerror=add_problem):
        if len(Path(parent).parts) - depth >= MAX_DEPTH:
            folders.clear()
        folders.sort()
        for name in sorted(names):
            count += 1
            if count > MAX_FILES:
                skipped.problems.append(f"{folder}: it holds more than {MAX_FILES:,} files; the rest is not read")
                return
            yield Path(parent, name)


def _found_in(file: Path, skipped: Skipped, limits: ReadingLimits, budget: UnpackBudget) -> Iterator[FoundFile]:
    display_path = readable(str(file))
    try:
        resolved = file.resolve(strict=True)
        if not resolved.is_file():
            return  # torch has a named pipe beside the dumps, by which they are requested
        if is_archive(file.name):
            yield from _found_inside(resolved, display_path, skipped, limits, budget)
            return
        with open(resolved, "rb") as stream:
            start = stream.read(_START_BYTES)
            if start.startswith(_GZIP):
                stream.seek(0)
                start = gunzip_start(stream, _START_BYTES) or start  # only its start: it may be a log of gigabytes
        if file.suffix == _TAPE:
            skipped.tapes += 1
            return
        if start and not _may_be_dump(start):
            skipped.other_files.append(file)
            return
    except (OSError, ValueError, RuntimeError) as error:
        skipped.problems.append(f"{display_path}: {_reason(error)}")
        return
    yield FoundFile(display_path, file.name, file, start=start)


def _found_inside(
    archive: Path, display_path: str, skipped: Skipped, limits: ReadingLimits, budget: UnpackBudget
) -> Iterator[FoundFile]:
    try:
        for name, content in members_of(archive, limits.file_bytes, budget, limits):
            inner = readable(f"{display_path}/{name}")
            if content is None:
                skipped.problems.append(f"{inner}: it has more than {limits.file_bytes} bytes")
            elif name.endswith(_TAPE):
                skipped.tapes += 1
            elif content and not _may_be_dump(content[:_START_BYTES]):
                skipped.other_members += 1
            else:
                start = content[:_START_BYTES]
                if start.startswith(_GZIP):
                    start = gunzip_start(io.BytesIO(content), _START_BYTES) or start
                yield FoundFile(inner, PurePosixPath(name).name, None, content, start)
    except (UnreadableError, TooLargeError, OSError, ValueError) as error:
        skipped.problems.append(f"{display_path}: {_reason(error)}")
    except MemoryError:
        skipped.problems.append(f"{display_path}: {NO_MEMORY}")


def _unzipped(content: bytes, max_bytes: int) -> bytes:
    """Return the content of a file, decompressed if it is a gzip file."""
    if not content.startswith(_GZIP):
        return content
    unzipped, error = gunzip(content, max_bytes + 1)
    if error is not None:
        raise error
    if len(unzipped) > max_bytes:
        raise ValueError(f"it has more than {max_bytes} bytes")
    return unzipped


def _may_be_dump(start: bytes) -> bool:
    return start.lstrip().startswith(_STARTS) or _is_chakra(start)


def _is_chakra(start: bytes) -> bool:
    """Return whether the bytes begin with a version of the stated length. Logs may match the bytes before it."""
    match = _OF_CHAKRA.match(start)
    return match is not None and len(match["version"]) >= match["length"][0]


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return readable(text or type(error).__name__, 200)
