"""What an agent sees of the ends of simulated ranks, which its launcher terminates: their times, and the signal."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from otel_torchdist.job.deaths import Death
from otel_torchdist.processes.death_watch import DeathWatch
from otel_torchdist.processes.state import Stopped
from otel_torchdist.tape.records import TapeIdentity


class SimulatedDeaths(DeathWatch):
    """Knows the end of each rank from the moment at which it is over, as the kernel would tell it."""

    def __init__(self, died_ns: Callable[[int], int | None]) -> None:
        """`died_ns` gives the time at which the rank with a tape's nonce died; None while it lives."""
        self._died_ns = died_ns

    def follow(self, tape: Path, identity: TapeIdentity) -> None:
        """All are followed."""

    def forget(self, nonce: int) -> None:
        """None is."""

    def note(self, nonce: int, stopped: Stopped | None, ran_ns: int) -> None:
        """They are never stopped alone."""

    def holds(self, nonce: int) -> bool:
        """Whether it is alive."""
        return self._died_ns(nonce) is None

    def death_of(self, nonce: int) -> Death | None:
        """How it ended."""
        at_ns = self._died_ns(nonce)
        return None if at_ns is None else Death(at_ns, status=int(signal.SIGTERM))
