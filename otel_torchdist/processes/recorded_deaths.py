"""The ends of processes as the job's agent has written them down, for those who only look on."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from otel_torchdist.job.deaths import Death, read_death
from otel_torchdist.processes.state import Stopped


class Deaths(Protocol):
    """Where it is known how the processes that write tapes have ended."""

    def death_of(self, nonce: int) -> Death | None:
        """The end of the process that writes the tape with this nonce; None while none was seen."""
        ...

    def holds(self, nonce: int) -> bool:
        """Whether its end will be known, and is not."""
        ...

    def note(self, nonce: int, stopped: Stopped | None, ran_ns: int) -> None:
        """Remember how a process that lives was last seen not to run, and when it was seen to run without a beat."""
        ...


class RecordedDeaths:
    """Reads what lies beside tapes. Who asks waits a moment for the agent's word once a lock on a tape is gone."""

    def __init__(self) -> None:
        """No tape is followed."""
        self._tapes: dict[int, Path] = {}
        self._known: dict[int, Death] = {}

    def follow(self, nonce: int, tape: Path) -> None:
        """Look beside this tape too."""
        self._tapes[nonce] = tape

    def death_of(self, nonce: int) -> Death | None:
        """See `Deaths`. Its cause may be written down later than that it has happened."""
        known = self._known.get(nonce)
        if (known is None or known.status is None) and nonce in self._tapes:
            found = read_death(self._tapes[nonce])
            if found is not None:
                known = self._known[nonce] = found
        return known

    def holds(self, nonce: int) -> bool:
        """See `Deaths`."""
        return self.death_of(nonce) is None

    def note(self, nonce: int, stopped: Stopped | None, ran_ns: int) -> None:
        """See `Deaths`; the agent remembers it."""
