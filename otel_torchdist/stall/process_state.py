"""Whether the kernel lets a rank's process run: stopped by a signal, held by a debugger, or deep in the kernel."""

from __future__ import annotations

from typing import Final

from otel_torchdist.stall.world import Stopped
from otel_torchdist.tape.identity import process_state, shares_pids
from otel_torchdist.tape.records import TapeIdentity

_DOES_NOT_RUN: Final = frozenset("TtD")


class ProcessState:
    """Looks at the process that writes a tape, and remembers since when it has not run."""

    def __init__(self, identity: TapeIdentity) -> None:
        """Look at the writer of a tape. A pid of another PID namespace or boot means nothing here."""
        self._identity = identity
        self._is_in_reach = shares_pids(identity)
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
        found = process_state(self._identity.pid) if self._is_in_reach else None
        return found[0] if found is not None and found[1] == self._identity.pid_start_ticks else ""
