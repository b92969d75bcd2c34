"""Whether a rank's process runs, by the kernel's word: stopped by a signal, held by a debugger, or let run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_torchdist.stall.context_switches import ContextSwitches
from otel_torchdist.tape.identity import process_state, shares_pids
from otel_torchdist.tape.records import TapeIdentity

_DOES_NOT_RUN: Final = frozenset("TtD")
SILENT_NS: Final = 1_200_000_000
"""A heart that has not beaten for so long may be held up: only then does it matter whether the process runs."""


class ProcessState:
    """Looks at the process that writes a tape, and remembers since when it has not run.

    Attributes:
        ran_ns: When it was last seen to have run though its heart did not beat; 0 for never.
    """

    def __init__(self, identity: TapeIdentity) -> None:
        """Look at the writer of a tape. A pid of another PID namespace or boot means nothing here."""
        self._identity = identity
        self._is_in_reach = shares_pids(identity)
        self._stopped: Stopped | None = None
        self._switches = ContextSwitches(identity.pid)
        self.ran_ns = 0

    def look(self, now_ns: int, heartbeat_ns: int) -> Stopped | None:
        """How it is prevented from running now; None when it runs, or when that cannot be known.

        Args:
            now_ns: The time.
            heartbeat_ns: When its heart beat last.
        """
        state = self._letter()
        if not state or now_ns - heartbeat_ns < SILENT_NS:
            self._switches.forget()
        elif self._switches.have_grown():
            self.ran_ns = now_ns
        if state not in _DOES_NOT_RUN:
            self._stopped = None
        elif self._stopped is None or self._stopped.state != state:
            self._stopped = Stopped(state, now_ns)
        return self._stopped

    def _letter(self) -> str:
        found = process_state(self._identity.pid) if self._is_in_reach else None
        return found[0] if found is not None and found[1] == self._identity.pid_start_ticks else ""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A process that the kernel does not let run.

    Attributes:
        state: Its letter in `/proc/<pid>/stat`: T (stopped), t (held by a debugger) or D (uninterruptible sleep).
        since_ns: When it was first seen like that, without a break since.
    """

    state: str
    since_ns: int


HEARTBEAT_LATE_NS: Final = 3_000_000_000
"""It beats once a second; when it is this late, the process's Python threads do not run."""
