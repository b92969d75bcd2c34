"""Finds the files of a process's cgroup, wherever this process has the hierarchies mounted."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class CgroupFile:
    """A file that means the same in both versions of cgroups.

    Attributes:
        name: Its name in version 2.
        controller: The controller that has it in version 1.
        old_name: Its name there; '' if there is none.
    """

    name: str
    controller: str
    old_name: str = ""


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted hierarchy: its kind, its options, the part of the hierarchy that it shows, and where."""

    kind: str
    options: tuple[str, ...]
    root: str
    place: str


def cgroup_files(pid: int, wanted: CgroupFile, root: Path = Path("/")) -> Iterator[Path]:
    """Return where a file of a process's cgroup may be; not all of these exist.

    Args:
        pid: The process, of this PID namespace.
        wanted: The file.
        root: Where `/proc` and the mounts are; another one in tests.
    """
    try:
        lines = (root / f"proc/{pid}/cgroup").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    mounts = _mounts(root)
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        kind, name = ("cgroup", wanted.old_name) if controllers else ("cgroup2", wanted.name)
        if not name or (controllers and wanted.controller not in controllers.split(",")):
            continue
        for mount in mounts:
            if mount.kind == kind and (not controllers or wanted.controller in mount.options):
                inside = group[len(mount.root.rstrip("/")) :] if group.startswith(mount.root) else ""
                yield root / (mount.place + inside).lstrip("/") / name


def _mounts(root: Path) -> list[_Mount]:
    try:
        lines = (root / "proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    found: list[_Mount] = []
    for line in lines:
        own, _, general = line.partition(" - ")
        fields, kinds = own.split(), general.split()
        if len(fields) > 4 and len(kinds) > 2 and kinds[0] in ("cgroup", "cgroup2"):
            found.append(_Mount(kinds[0], tuple(kinds[2].split(",")), fields[3], fields[4]))
    return found


# --- out-of-memory kills ----------------------------------------------------------------------------------------------
# Counts the kernel's out-of-memory kills, in a rank's cgroup and on the whole node.


_EVENTS: Final = CgroupFile("memory.events", "memory", "memory.oom_control")
_COUNTER: Final = b"oom_kill"
_VMSTAT: Final = Path("/proc/vmstat")
_READINGS: Final = 10
"""Readings kept per counter: between the count and the end of a process the kernel frees its memory, which can take
seconds."""


class OomKills:
    """Counters that are read periodically while processes live, and again when one has died.

    The kernel counts before it sends the signal, so the count is visible once the death is.
    """

    def __init__(self) -> None:
        self._before: dict[Path, deque[int]] = {}
        self.read([_VMSTAT])

    def follow(self, pid: int) -> Path | None:
        """Start reading the cgroup counter of a process of this PID namespace; returns it, or None if it has none."""
        path = _counter_of(pid)
        if path is not None and path not in self._before:
            self.read([path])
        return path

    def read(self, paths: list[Path] | None = None) -> None:
        """Read counters, all if none are given, as the baseline for what is counted later."""
        for path in paths if paths is not None else list(self._before):
            count = _read(path)
            if count is not None:
                self._before.setdefault(path, deque(maxlen=_READINGS)).append(count)

    def has_grown(self, path: Path | None) -> bool:
        """Whether a counter has grown during its last readings, or since."""
        before = self._before.get(path) if path is not None else None
        count = _read(path) if path is not None else None
        return before is not None and count is not None and count > before[0]

    def has_grown_on_node(self) -> bool:
        """Whether any process of the node was killed during the last readings, or since."""
        return self.has_grown(_VMSTAT)

    def forget_all_but(self, paths: set[Path]) -> None:
        """Read only these and the node's from now on."""
        self._before = {path: counts for path, counts in self._before.items() if path in paths or path == _VMSTAT}


def kills_so_far(pid: int) -> int | None:
    """Return how many processes of a process's cgroup were killed so far; None if the kernel does not report it."""
    path = _counter_of(pid)
    return _read(path) if path is not None else None


def _counter_of(pid: int) -> Path | None:
    """Return `memory.events` of cgroup v2, or `memory.oom_control` of v1; None if there is neither."""
    return next((path for path in cgroup_files(pid, _EVENTS) if _read(path) is not None), None)


def _read(path: Path) -> int | None:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, count = line.partition(b" ")
        if name == _COUNTER and count.strip().isdigit():
            return int(count)
    return None
