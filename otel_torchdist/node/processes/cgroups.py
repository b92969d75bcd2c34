"""Finds the files of a process's cgroup under this process's mounts, and counts out-of-memory kills in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class CgroupFile:
    """A file of a cgroup, in both versions of cgroups.

    Attributes:
        name: Name in version 2.
        controller: Controller in version 1.
        v1_name: Name in version 1; '' if there is no such file.
    """

    name: str
    controller: str
    v1_name: str = ""


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted hierarchy: file system type, mount options, root within the hierarchy, and mount point."""

    kind: str
    options: tuple[str, ...]
    root: str
    point: str


def cgroup_files(pid: int, wanted: CgroupFile, root: Path = Path("/")) -> Iterator[Path]:
    """Yield the possible paths of a file of a process's cgroup; not all of them exist.

    Args:
        pid: Process id, in this PID namespace.
        wanted: The file.
        root: Parent of `/proc` and the mounts; another directory in tests.
    """
    try:
        lines = (root / f"proc/{pid}/cgroup").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    mounts = _mounts(root)
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        kind, name = ("cgroup", wanted.v1_name) if controllers else ("cgroup2", wanted.name)
        if not name or (controllers and wanted.controller not in controllers.split(",")):
            continue
        for mount in mounts:
            if mount.kind == kind and (not controllers or wanted.controller in mount.options):
                group_below_mount = group[len(mount.root.rstrip("/")) :] if group.startswith(mount.root) else ""
                yield root / (mount.point + group_below_mount).lstrip("/") / name


def _mounts(root: Path) -> list[_Mount]:
    try:
        lines = (root / "proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    mounts: list[_Mount] = []
    for line in lines:
        mount_part, _, filesystem_part = line.partition(" - ")
        mount, filesystem = mount_part.split(), filesystem_part.split()
        if len(mount) > 4 and len(filesystem) > 2 and filesystem[0] in ("cgroup", "cgroup2"):
            mounts.append(_Mount(filesystem[0], tuple(filesystem[2].split(",")), mount[3], mount[4]))
    return mounts


# --- out-of-memory kills ----------------------------------------------------------------------------------------------
# Reads the kernel's counters of out-of-memory kills: of a rank's cgroup, and of the whole node.


_EVENTS: Final = CgroupFile("memory.events", "memory", "memory.oom_control")
_COUNTER: Final = b"oom_kill"
_VMSTAT: Final = Path("/proc/vmstat")
_READINGS: Final = 10
"""Readings to keep per counter: a process may end seconds after it was counted, because its memory is freed first."""


class OomKills:
    """Counters of out-of-memory kills. They are read periodically, and again when a process has died.

    The kernel counts before it sends the signal, so a visible death is already counted.
    """

    def __init__(self) -> None:
        self._counts: dict[Path, deque[int]] = {}
        self.read([_VMSTAT])

    def follow(self, pid: int) -> Path | None:
        """Start reading the cgroup counter of a process of this PID namespace; return its path, or None."""
        path = _counter_of(pid)
        if path is not None and path not in self._counts:
            self.read([path])
        return path

    def read(self, paths: list[Path] | None = None) -> None:
        """Read these counters, or all, as the baseline for `has_grown`."""
        for path in paths if paths is not None else list(self._counts):
            count = _read(path)
            if count is not None:
                self._counts.setdefault(path, deque(maxlen=_READINGS)).append(count)

    def has_grown(self, path: Path | None) -> bool:
        """Return whether a counter has grown over its last readings, or since."""
        before = self._counts.get(path) if path is not None else None
        count = _read(path) if path is not None else None
        return before is not None and count is not None and count > before[0]

    def has_grown_on_node(self) -> bool:
        """Return whether the counter of the node has grown over its last readings, or since."""
        return self.has_grown(_VMSTAT)

    def forget_all_but(self, paths: set[Path]) -> None:
        """Stop reading all counters except these and the node's."""
        self._counts = {path: counts for path, counts in self._counts.items() if path in paths or path == _VMSTAT}


def kills_so_far(pid: int) -> int | None:
    """Return the out-of-memory kills in a process's cgroup so far; None if the kernel does not report them."""
    path = _counter_of(pid)
    return _read(path) if path is not None else None


def _counter_of(pid: int) -> Path | None:
    """Return the path of `memory.events` (cgroup v2) or `memory.oom_control` (v1); None if there is neither."""
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
