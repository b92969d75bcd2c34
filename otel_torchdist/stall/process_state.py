"""Whether the kernel lets a rank's process run: stopped by a signal, held by a debugger, or deep in the kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from otel_torchdist.stall.world import Stopped
from otel_torchdist.tape.identity import boot_id, pid_namespace
from otel_torchdist.tape.records import TapeIdentity

_DOES_NOT_RUN: Final = frozenset("TtD")
_START_TICKS: Final = 19
"""Index of the process's start time among the fields after its name; its state is the first of them."""


class ProcessState:
    """Looks at the process that writes a tape, and remembers since when it has not run."""

    def __init__(self, identity: TapeIdentity) -> None:
        """Look at the writer of a tape. A pid of another PID namespace or boot means nothing here."""
        self._start_ticks = str(identity.pid_start_ticks).encode()
        is_in_reach = (identity.pid_namespace, identity.boot_id) == (pid_namespace(), boot_id())
        self._file = Path(f"/proc/{identity.pid}/stat") if is_in_reach and identity.pid_namespace else None
        self._stopped: Stopped | None = None

    def look(self, now_ns: int) -> Stopped | None:
        """How it is prevented from running now; None when it runs, or when that cannot be known."""
        state = self._letter()
        if state not in _DOES_NOT_RUN:
            self._stopped = None
        elif self._stopped is None or self._stopped.state != state:
            self._stopped = Stopped(state, now_ns)
        return self._stopped

    def _letter(self) -> str:
        if self._file is None:
            return ""
        try:
            stat = self._file.read_bytes()
        except OSError:
            return ""
        # The second field is the program's name in parentheses and may itself hold spaces and parentheses.
        fields = stat[stat.rindex(b")") + 2 :].split()
        return fields[0].decode() if fields[_START_TICKS] == self._start_ticks else ""
