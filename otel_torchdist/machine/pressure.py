"""Reads pressure stall information: how long everything waited for memory or storage, on the node or in a cgroup."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from otel_torchdist.processes.cgroups import CgroupFile, cgroup_files
from otel_torchdist.processes.users import belongs_to
from otel_torchdist.tape.identity import TapeIdentity, process_start_ticks, shares_pids

_FULL: Final = re.compile(r"^full avg10=(\d{1,3}\.\d+) avg60=\S+ avg300=\S+ total=\d{1,19}$", re.MULTILINE)
_MEMORY: Final = CgroupFile("memory.pressure", "memory")
_TYPE: Final = "cgroup.type"


def stalled_share(path: Path) -> float:
    """Return the share of the last 10 s in which all tasks that were not idle waited, from 0 to 1.

    0.0 if the kernel does not report it: it was booted with `psi=0`, or the file is damaged.
    """
    try:
        found = _FULL.search(path.read_text("ascii", "replace"))
    except OSError:
        return 0.0
    return min(float(found[1]) / 100, 1.0) if found is not None else 0.0


class RankCgroup:
    """The cgroup of the process that writes a tape; in a container that of the container."""

    def __init__(self, identity: TapeIdentity, owner: int, root: Path = Path("/")) -> None:
        """Find the cgroup. There is none if the process is in another PID namespace, or of another boot.

        Args:
            identity: Identity of the tape.
            owner: Owner of the tape. Other users could forge the pid, to learn about other processes.
            root: Where `/proc` and the mounts are; another place in tests.
        """
        self._identity = identity
        is_in_reach = shares_pids(identity) and (owner == os.geteuid() or belongs_to(identity.pid, owner))
        found = cgroup_files(identity.pid, _MEMORY, root) if is_in_reach else ()
        # The root of all cgroups is no cgroup of the rank's, and shows the whole node; it alone has no type.
        self._memory = next((path for path in found if path.exists() and (path.parent / _TYPE).exists()), None)

    def memory_pressure(self) -> float:
        """Return its `stalled_share` for memory; 0.0 if unknown, or if the pid is another process's by now."""
        if self._memory is None or process_start_ticks(self._identity.pid) != self._identity.pid_start_ticks:
            return 0.0
        return stalled_share(self._memory)
