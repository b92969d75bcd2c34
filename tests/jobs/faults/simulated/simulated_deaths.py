"""What an agent sees of the ends of simulated ranks, which their launcher terminates: times and signal."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from otel_torchdist.model.rank_state.lives import Death, Stopped
from otel_torchdist.node.processes.death_watch import DeathWatch
from otel_torchdist.tape.identity import TapeIdentity


class SimulatedDeaths(DeathWatch):
    """Knows the end of each rank as soon as it has happened, as the kernel would report it."""

    def __init__(self, died_ns: Callable[[int], int | None]) -> None:
        """Take `died_ns`: the time at which the rank with a tape's nonce died, None while it lives."""
        self._died_ns = died_ns

    def follow(self, tape: Path, identity: TapeIdentity, owner: int) -> None:
        """Do nothing: all are followed."""

    def forget(self, nonce: int) -> None:
        """Do nothing: none is forgotten."""

    def note(self, nonce: int, stopped: Stopped | None, ran_ns: int) -> None:
        """Do nothing: ranks are never stopped alone."""

    def awaits_end(self, nonce: int) -> bool:
        """Whether the rank is alive."""
        return self._died_ns(nonce) is None

    def death_of(self, nonce: int) -> Death | None:
        """How the rank ended."""
        at_ns = self._died_ns(nonce)
        return None if at_ns is None else Death(at_ns, status=int(signal.SIGTERM))
