"""Finds and removes the files of ended runs in job directories; `room` decides which process does that, and when."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.node.job.directory import (
    CHECKPOINT_NAME,
    SPACE_DIVISOR,
    START_LOCK_NAME,
    is_tape_name,
    job_directories,
)
from otel_torchdist.system.files.locks import exclusive_lock, is_file_locked

AGENT_DUE_NS: Final = 30_000_000_000
"""Time within which a started agent reads the tapes, even on a busy node."""
_FILE_OF_TAPE: Final = re.compile(
    r"\.?([0-9a-f]{16})\.(?:tape|names|fault|abort|rescue|new|(?:stacks|death|profile|description|worlds)(?:\.new)?)"
)


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a job directory, with its size on the file system in bytes."""

    name: str
    device: int
    inode: int
    size: int
    changed_ns: int
    is_regular: bool


@dataclass(frozen=True, slots=True)
class Leftover:
    """A unit of removal: a job directory, or (with a `nonce`) the files of one tape in a directory in use.

    Attributes:
        nonce: Nonce of the tape, in hexadecimal digits; None for the whole directory.
        size: Bytes.
        changed_ns: Wall clock time of the last change in it.
        is_unread: Whether a newly started agent has yet to read it, because the job was very short.
    """

    directory: Path
    nonce: str | None
    size: int
    changed_ns: int
    is_unread: bool = False


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """The files of running ranks.

    Attributes:
        size: Bytes in all job directories.
        tapes_in: Number of live tapes in each job directory.
    """

    size: int
    tapes_in: dict[Path, int]


def find_leftovers(directories: list[Path]) -> list[Leftover]:
    """Return the leftovers of ended runs, oldest first; remove files without a tape at once."""
    listings = {directory: _files(directory) for directory in directories}
    # Read after the listings, so that every listed file that this process writes is in it.
    open_here = _open_in_this_process()
    leftovers: list[Leftover] = []
    for directory, files in listings.items():
        in_use = _in_use(directory, files, open_here)
        if _without_tape(files) and _remove_files_of_tape(directory, None):
            files = _files(directory)
        leftovers += _leftovers(directory, files, in_use)
    return sorted(leftovers, key=lambda leftover: leftover.changed_ns)


def find_live(base: Path) -> LiveFiles:
    """Return the files of live tapes under a base directory.

    Raises:
        OSError: The base directory cannot be read.
    """
    open_here = _open_in_this_process()
    size = 0
    tapes_in: dict[Path, int] = {}
    with os.scandir(base) as entries:
        directories = [base / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    for directory in directories:
        files = _files(directory)
        in_use = _in_use(directory, files, open_here)
        tapes_in[directory] = sum(map(is_tape_name, in_use))
        ended = sum(leftover.size for leftover in _leftovers(directory, files, in_use))
        size += sum(file.size for file in files) - ended
    return LiveFiles(size, tapes_in)


def remove(leftover: Leftover) -> bool:
    """Remove a leftover, unless it has come into use; return whether it was removed."""
    if leftover.nonce is None:
        return _remove_directory(leftover.directory)
    return _remove_files_of_tape(leftover.directory, leftover.nonce)


def _remove_directory(directory: Path) -> bool:
    with exclusive_lock(directory) as alone:
        files = _files(directory)
        if not alone or _in_use(directory, files, _open_in_this_process()):
            return False
        _unlink(directory, files)
        with contextlib.suppress(OSError):
            directory.rmdir()
            return True
    return False


def _remove_files_of_tape(directory: Path, nonce: str | None) -> bool:
    """Remove the files of an ended tape, if `nonce` is given, and all files whose tape is missing."""
    with exclusive_lock(directory) as alone:
        if not alone:
            return False
        files = _files(directory)
        _unlink(directory, _without_tape(files))
        parts = _files_by_nonce(files).get(nonce or "", [])
        if _in_use(directory, parts, _open_in_this_process()):
            return False
        _unlink(directory, parts)
    return True


def _unlink(directory: Path, files: list[_File]) -> None:
    """Unlink files, tapes first: after an interruption there may be files without a tape, but no tape without files."""
    for file in sorted(files, key=lambda file: not is_tape_name(file.name)):
        with contextlib.suppress(OSError):
            (directory / file.name).unlink()


def _leftovers(directory: Path, files: list[_File], in_use: set[str]) -> Iterator[Leftover]:
    if not in_use:
        yield _leftover(directory, None, files)
        return
    for nonce, parts in _files_by_nonce(files).items():
        if f"{nonce}.tape" not in in_use and any(is_tape_name(part.name) for part in parts):
            yield _leftover(directory, nonce, parts)


def _is_unread(files: list[_File]) -> bool:
    changed_ns = {file.name: file.changed_ns for file in files}
    started_ns = changed_ns.get(START_LOCK_NAME, 0)
    return CHECKPOINT_NAME not in changed_ns and abs(time.time_ns() - started_ns) < AGENT_DUE_NS


def _leftover(directory: Path, nonce: str | None, files: list[_File]) -> Leftover:
    changed_ns = max((file.changed_ns for file in files), default=0)
    if not files:  # the directory may be newly created, and about to be used
        with contextlib.suppress(OSError):
            changed_ns = directory.stat().st_mtime_ns
    return Leftover(directory, nonce, sum(file.size for file in files), changed_ns, nonce is None and _is_unread(files))


def _files(directory: Path) -> list[_File]:
    files: list[_File] = []
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                files.append(
                    _File(
                        name=entry.name,
                        device=info.st_dev,
                        inode=info.st_ino,
                        size=info.st_blocks * 512,
                        changed_ns=info.st_mtime_ns,
                        is_regular=stat.S_ISREG(info.st_mode),
                    )
                )
    return files


def _files_by_nonce(files: list[_File]) -> dict[str, list[_File]]:
    """Return the files of each tape, by its nonce."""
    parts: defaultdict[str, list[_File]] = defaultdict(list)
    for file in files:
        match = _FILE_OF_TAPE.fullmatch(file.name)
        if match:
            parts[match[1]].append(file)
    return parts


def _without_tape(files: list[_File]) -> list[_File]:
    """Return the files whose tape is missing: their creator has crashed, or is creating the tape at this moment."""
    return [
        part
        for parts in _files_by_nonce(files).values()
        if not any(is_tape_name(other.name) for other in parts)
        for part in parts
    ]


def _open_in_this_process() -> set[tuple[int, int]] | None:
    """Return device and inode of all files that this process has open; None if /proc does not show them."""
    identities: set[tuple[int, int]] = set()
    try:
        descriptors = os.listdir("/proc/self/fd")
    except OSError:
        return None
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            info = os.stat(f"/proc/self/fd/{descriptor}")
            identities.add((info.st_dev, info.st_ino))
    return identities


def _in_use(directory: Path, files: list[_File], open_here: set[tuple[int, int]] | None) -> set[str]:
    """Return the names of the files that another process has locked, or that this process has open."""
    names: set[str] = set()
    for file in files:
        is_open_here = open_here is None or (file.device, file.inode) in open_here
        if file.is_regular and (is_open_here or _is_locked(directory / file.name)):
            names.add(file.name)
    return names


def _is_locked(path: Path) -> bool:
    try:
        return is_file_locked(path)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # unknown: treated as locked


def clean_up(base: Path, keep_runs: int, keep_bytes: int) -> None:
    """Remove the oldest leftovers of ended runs, until the remaining leftovers are within both limits.

    A leftover is a job directory without a locked file, or an ended tape in a directory with locked files. Files that
    this process has open count as locked without a check: closing a second descriptor of its own tape would release
    the lock that marks it as alive. Files without a tape, left by crashed creators, are removed at once. Concurrent
    removal by another process is not an error. Links are not followed.

    Args:
        base: The base directory.
        keep_runs: Job directories of ended runs to keep, not counting those that an agent is about to read.
        keep_bytes: Bytes that all leftovers may take; at most 1/SPACE_DIVISOR of the file system is used.
    """
    leftovers = find_leftovers(job_directories(base))
    runs = sum(leftover.nonce is None for leftover in leftovers)
    size = sum(leftover.size for leftover in leftovers)
    limit = _limit_in_filesystem(base, keep_bytes)
    for leftover in leftovers:
        if size <= limit and (leftover.nonce is not None or leftover.is_unread or runs <= keep_runs):
            continue
        if remove(leftover):
            runs -= leftover.nonce is None
            size -= leftover.size


def _limit_in_filesystem(base: Path, keep_bytes: int) -> int:
    try:
        info = os.statvfs(base)
    except OSError:
        return keep_bytes
    total = info.f_blocks * info.f_frsize
    return min(keep_bytes, total // SPACE_DIVISOR) if total else keep_bytes
