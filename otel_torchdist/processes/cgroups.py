"""Finds the files of a process's cgroup, wherever this process has the hierarchies mounted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


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
