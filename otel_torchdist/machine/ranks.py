"""Reads what a rank's process and its cgroup use, where its pid is valid here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from otel_torchdist.machine.host import seconds
from otel_torchdist.machine.model import CgroupFigures, ProcessFigures, Resource
from otel_torchdist.machine.pressure import read_pressure
from otel_torchdist.processes.cgroups import CgroupFile, cgroup_files
from otel_torchdist.tape.identity import TapeIdentity, shares_pids

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_USAGE: Final = CgroupFile("memory.current", "memory", "memory.usage_in_bytes")
_LIMIT: Final = CgroupFile("memory.max", "memory", "memory.limit_in_bytes")
_TYPE: Final = "cgroup.type"
_NO_LIMIT: Final = 1 << 60
"""What version 1 shows where there is no limit is about that, and no machine has as much."""


class RankFiles:
    """The files in /proc and in the cgroup of the process that writes a tape."""

    def __init__(self, identity: TapeIdentity, owner: int, root: Path = Path("/")) -> None:
        """Find them; there are none if the process is in another PID namespace, or of another boot.

        Args:
            identity: Identity of the tape.
            owner: Owner of the tape. Other users could forge the pid, to learn about other processes.
            root: Where `/proc` is; another place in tests.
        """
        self._folder = root / f"proc/{identity.pid}"
        self._is_in_reach = shares_pids(identity) and self._belongs_to(owner)
        self._start_ticks = identity.pid_start_ticks
        self._usage = self._find(identity.pid, root, _USAGE)
        self._limit = self._find(identity.pid, root, _LIMIT)
        self._pressure = {
            one: self._find(identity.pid, root, CgroupFile(f"{one.value}.pressure", one.value)) for one in Resource
        }

    def _belongs_to(self, owner: int) -> bool:
        try:
            return owner in (os.geteuid(), self._folder.stat().st_uid)
        except OSError:
            return False

    def _find(self, pid: int, root: Path, wanted: CgroupFile) -> Path | None:
        if not self._is_in_reach:
            return None
        found = (path for path in cgroup_files(pid, wanted, root) if path.exists())
        # The root of all cgroups is no cgroup of the rank's, and shows the whole node; it alone has no type.
        return next((path for path in found if path.name != wanted.name or (path.parent / _TYPE).exists()), None)

    def process(self) -> ProcessFigures | None:
        """Read what the process uses now; None if it is over, or its pid is that of another process by now."""
        if not self._is_in_reach:
            return None
        try:
            stat = (self._folder / "stat").read_bytes()
            pages = (self._folder / "statm").read_bytes().split()
            # The second field is the program's name in parentheses, and may itself hold spaces and parentheses.
            fields = stat[stat.rindex(b")") + 2 :].split()
            if int(fields[19]) != self._start_ticks:
                return None
            return ProcessFigures(
                resident=int(pages[1]) * _PAGE,
                virtual=int(pages[0]) * _PAGE,
                user_s=seconds(int(fields[11])),
                system_s=seconds(int(fields[12])),
                threads=int(fields[17]),
            )
        except (OSError, ValueError, IndexError):
            return None

    def cgroup(self) -> CgroupFigures | None:
        """Read what its cgroup uses now; None if that is not known."""
        usage, limit = _bytes_in(self._usage), _bytes_in(self._limit)
        pressure = read_pressure(self._pressure.__getitem__)
        if usage is None and not pressure:
            return None
        return CgroupFigures(usage, limit if limit is not None and limit < _NO_LIMIT else None, pressure)


def _bytes_in(path: Path | None) -> int | None:
    """Read a number of bytes; None for none, or for `max`."""
    try:
        text = path.read_text("ascii", "replace").strip() if path is not None else ""
    except OSError:
        return None
    return int(text) if text.isdecimal() and len(text) <= 20 else None
