"""What ended runs leave in job directories, how it is removed, and how much room tapes may take.

In a container `/dev/shm` has 64 MB by default, and DataLoader workers need it: they die of SIGBUS when it is full. An
eighth is for the tapes of running ranks, and an eighth for the leftovers of ended runs (see `directory.clean_up`).
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.files.locks import alone_in, is_file_locked
from otel_torchdist.model.names import MAX_BYTES
from otel_torchdist.tape import layout

START_LOCK_NAME: Final = "start.lock"
"""Locked by a rank that starts an agent, and written to when it does."""
CHECKPOINT_NAME: Final = "agent.checkpoint"
"""What an agent has read so far; the first one is written soon after its start."""
AGENT_DUE_NS: Final = 30_000_000_000
"""An agent that has been started reads the tapes within this time, also on a busy node."""
_PART_OF_TAPE: Final = re.compile(
    r"\.?([0-9a-f]{16})\.(?:tape|names|fault|abort|rescue|new|(?:stacks|death|profile|description|worlds)(?:\.new)?)"
)


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    device: int
    inode: int
    size: int
    changed_ns: int
    regular: bool


@dataclass(frozen=True, slots=True)
class Leftover:
    """A unit of removal: a job directory, or (with a `nonce`) the files of one tape in a directory in use.

    Attributes:
        directory: The directory.
        nonce: That of the tape, in hexadecimal digits; None for the whole directory.
        size: Bytes.
        changed_ns: When something last changed in it, on the wall clock.
        is_unread: Whether an agent that has just been started has yet to read it: its job was very short.
    """

    directory: Path
    nonce: str | None
    size: int
    changed_ns: int
    is_unread: bool = False


@dataclass(frozen=True, slots=True)
class Live:
    """The files of running ranks.

    Attributes:
        size: Their bytes in all job directories.
        tapes_in: The number of their tapes in each job directory.
    """

    size: int
    tapes_in: dict[Path, int]


def is_tape_name(name: str) -> bool:
    """Whether a file of this name is a tape; a tape being created has another name."""
    return name.endswith(".tape") and not name.startswith(".")


def find_leftovers(directories: list[Path]) -> list[Leftover]:
    """Find what ended runs left in job directories, oldest first; parts without a tape are removed at once."""
    listings = {directory: _files(directory) for directory in directories}
    # Taken after the listings: every file in them that this process writes is open by now.
    ours = _open_in_this_process()
    leftovers: list[Leftover] = []
    for directory, files in listings.items():
        held = _held(directory, files, ours)
        if _without_tape(files) and _remove_parts(directory, None):
            files = _files(directory)
        leftovers += _leftovers(directory, files, held)
    return sorted(leftovers, key=lambda leftover: leftover.changed_ns)


def find_live(base: Path) -> Live:
    """Find the files of tapes that are being written.

    Raises:
        OSError: The base directory cannot be read.
    """
    ours = _open_in_this_process()
    size = 0
    tapes_in: dict[Path, int] = {}
    with os.scandir(base) as entries:
        directories = [base / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    for directory in directories:
        files = _files(directory)
        held = _held(directory, files, ours)
        tapes_in[directory] = sum(map(is_tape_name, held))
        ended = sum(leftover.size for leftover in _leftovers(directory, files, held))
        size += sum(file.size for file in files) - ended
    return Live(size, tapes_in)


def remove(leftover: Leftover) -> bool:
    """Remove a leftover, unless it has come into use; returns whether it is gone."""
    if leftover.nonce is None:
        return _remove_directory(leftover.directory)
    return _remove_parts(leftover.directory, leftover.nonce)


def _remove_directory(directory: Path) -> bool:
    with alone_in(directory) as alone:
        files = _files(directory)
        if not alone or _held(directory, files, _open_in_this_process()):
            return False
        _unlink(directory, files)
        with contextlib.suppress(OSError):
            directory.rmdir()
            return True
    return False


def _remove_parts(directory: Path, nonce: str | None) -> bool:
    """Remove the files of an ended tape, and in any case files whose tape is missing."""
    with alone_in(directory) as alone:
        if not alone:
            return False
        files = _files(directory)
        _unlink(directory, _without_tape(files))
        parts = _parts(files).get(nonce or "", [])
        if _held(directory, parts, _open_in_this_process()):
            return False
        _unlink(directory, parts)
    return True


def _unlink(directory: Path, files: list[_File]) -> None:
    """Unlink files, tapes first: an interruption leaves parts without a tape behind, never the reverse."""
    for file in sorted(files, key=lambda file: not is_tape_name(file.name)):
        with contextlib.suppress(OSError):
            (directory / file.name).unlink()


def _leftovers(directory: Path, files: list[_File], held: set[str]) -> Iterator[Leftover]:
    if not held:
        yield _leftover(directory, None, files)
        return
    for nonce, parts in _parts(files).items():
        if f"{nonce}.tape" not in held and any(is_tape_name(part.name) for part in parts):
            yield _leftover(directory, nonce, parts)


def _is_unread(files: list[_File]) -> bool:
    changed_ns = {file.name: file.changed_ns for file in files}
    started_ns = changed_ns.get(START_LOCK_NAME, 0)
    return CHECKPOINT_NAME not in changed_ns and abs(time.time_ns() - started_ns) < AGENT_DUE_NS


def _leftover(directory: Path, nonce: str | None, files: list[_File]) -> Leftover:
    changed_ns = max((file.changed_ns for file in files), default=0)
    if not files:  # perhaps newly created, and about to be used
        with contextlib.suppress(OSError):
            changed_ns = directory.stat().st_mtime_ns
    return Leftover(directory, nonce, sum(file.size for file in files), changed_ns, nonce is None and _is_unread(files))


def _files(directory: Path) -> list[_File]:
    found: list[_File] = []
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                facts = entry.stat(follow_symlinks=False)
                found.append(
                    _File(
                        name=entry.name,
                        device=facts.st_dev,
                        inode=facts.st_ino,
                        size=facts.st_blocks * 512,
                        changed_ns=facts.st_mtime_ns,
                        regular=stat.S_ISREG(facts.st_mode),
                    )
                )
    return found


def _parts(files: list[_File]) -> dict[str, list[_File]]:
    """Group the files of each tape by its nonce."""
    parts: defaultdict[str, list[_File]] = defaultdict(list)
    for file in files:
        match = _PART_OF_TAPE.fullmatch(file.name)
        if match:
            parts[match[1]].append(file)
    return parts


def _without_tape(files: list[_File]) -> list[_File]:
    """Return the files whose tape is missing: its creator crashed, or is creating it at this moment."""
    return [
        part
        for parts in _parts(files).values()
        if not any(is_tape_name(other.name) for other in parts)
        for part in parts
    ]


def _open_in_this_process() -> set[tuple[int, int]] | None:
    """Return device and inode of all files that this process has open; None if /proc does not show them."""
    found: set[tuple[int, int]] = set()
    try:
        descriptors = os.listdir("/proc/self/fd")
    except OSError:
        return None
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            facts = os.stat(f"/proc/self/fd/{descriptor}")
            found.add((facts.st_dev, facts.st_ino))
    return found


def _held(directory: Path, files: list[_File], ours: set[tuple[int, int]] | None) -> set[str]:
    """Return the names of the files that another process has locked, or that this process has open."""
    return {
        file.name
        for file in files
        if file.regular and (ours is None or (file.device, file.inode) in ours or _is_locked(directory / file.name))
    }


def _is_locked(path: Path) -> bool:
    try:
        return is_file_locked(path)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # unknown, so it may be


SHARE: Final = 8
"""Running ranks and leftovers may each take one part in so many of the file system."""
MIN_RECORDS: Final = 512
"""Fewer would show too little of a stall, however small the file system is."""
MIN_NAMES: Final = 64 << 10
_NAMES_SHARE: Final = 4
"""If room is scarce, one part in so many is for the dictionary."""
_MOST_LOCAL_RANKS: Final = 16
"""Assumed maximum number of ranks on a node if no launcher states it."""
_LOCAL_SIZE_VARIABLES: Final = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


@dataclass(frozen=True, slots=True)
class Room:
    """The room for one tape.

    Attributes:
        records: Records in its ring.
        names_bytes: Maximum size of its dictionary.
        filesystem_bytes: Size of the file system.
    """

    records: int
    names_bytes: int
    filesystem_bytes: int


def find_room(directory: Path, wanted: int, ranks: int) -> Room:
    """Find the room for one more tape in a job directory.

    Args:
        directory: The job directory.
        wanted: The configured number of records in its ring.
        ranks: Ranks of the job on this node.
    """
    try:
        facts = os.statvfs(directory)
        live = find_live(directory.parent)
    except OSError:
        return Room(wanted, MAX_BYTES, 0)
    whole = facts.f_blocks * facts.f_frsize
    # Others may have filled the file system: then half of what is still free.
    free = min(whole // SHARE - live.size, facts.f_bavail * facts.f_frsize // 2)
    share = max(free, 0) // max(1, ranks - live.tapes_in.get(directory, 0))
    if not whole or share >= layout.tape_size(wanted) + MAX_BYTES:
        return Room(wanted, MAX_BYTES, whole)
    records = (share - share // _NAMES_SHARE - layout.RING_OFFSET) // layout.RECORD_SIZE
    records = min(wanted, max(records, MIN_RECORDS))
    names = min(MAX_BYTES, max(share - layout.tape_size(records), MIN_NAMES))
    return Room(records, names, whole)


def ranks_of_node(environ: Mapping[str, str], world_size: int) -> int:
    """Return the number of the job's ranks on this node: from its launcher, else an upper bound."""
    for name in _LOCAL_SIZE_VARIABLES:
        text = environ.get(name, "")
        if text.isascii() and text.isdecimal() and int(text):
            return min(int(text), world_size)
    return min(world_size, _MOST_LOCAL_RANKS)
