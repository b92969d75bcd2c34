"""The ends of processes as recorded by the job's agent, for passive readers."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from otel_torchdist.job.runs.deaths import read_death
from otel_torchdist.model.lives import Death, Stopped


class Deaths(Protocol):
    """A source that knows how the processes that write tapes have ended."""

    def death_of(self, nonce: int) -> Death | None:
        """Return the death of the process that writes the tape with this nonce; None while none was seen."""
        ...

    def holds(self, nonce: int) -> bool:
        """Whether the end of a process will be known, but is not yet."""
        ...

    def note(self, nonce: int, stopped: Stopped | None, ran_ns: int) -> None:
        """Remember how a live process was last seen not to run, and when it was seen to run without a heartbeat."""
        ...


class RecordedDeaths:
    """Reads the files beside tapes. Once the lock on a tape is gone, callers wait a moment for the agent's record."""

    def __init__(self) -> None:
        self._tapes: dict[int, Path] = {}
        self._known: dict[int, Death] = {}

    def follow(self, nonce: int, tape: Path) -> None:
        """Read the file beside this tape too."""
        self._tapes[nonce] = tape

    def death_of(self, nonce: int) -> Death | None:
        """See `Deaths`. The cause of a death may be recorded later than the death itself."""
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
        """See `Deaths`; ignored, because the agent remembers it."""
