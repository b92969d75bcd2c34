"""What became of processes that are gone without a word: not every one of them has died.

A rank may leave by `os._exit(0)`, past every handler, as some programs do for a teardown that hangs. A helper, which
is a process that a rank has started and that made a group of its own, is terminated when its rank ends.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from otel_torchdist.job.deaths import Death, read_death
from otel_torchdist.job.lives import RankLife, has_ended_with_parent, has_left, life_of, waits
from otel_torchdist.processes.recorded_deaths import Deaths
from otel_torchdist.tape.reader import TapeReader

REAPED_S: Final = 1.0
"""The exit code of a process is known once its parent has asked for it."""
TOGETHER_S: Final = 5.0
"""A helper that is gone for no longer than this may have ended together with its rank, whose end takes its time."""


class SilentEnds:
    """Tells deaths from ends in good order. Remembers what it found."""

    def __init__(self, deaths: Deaths | None = None) -> None:
        """No rank is gone yet; `deaths` knows how processes end, else what an agent has written down does."""
        self._deaths = deaths
        self._gone_since: dict[int, float] = {}
        self._settled: dict[int, RankLife] = {}

    def life_of(self, tape: TapeReader, tapes: Collection[TapeReader]) -> RankLife:
        """What became of the process that writes a tape; `RUNNING` also while it cannot be known yet.

        Args:
            tape: Of a rank or of a helper. It has been polled to its end.
            tapes: All tapes that are read.

        Raises:
            TapeError: The tape is damaged.
        """
        nonce = tape.identity.nonce
        known = self._settled.get(nonce)
        if known is not None:
            return known
        life = life_of(tape)
        if life is RankLife.DEAD:
            life = self._look(tape, tapes)
        if life is not RankLife.RUNNING:
            self._settled[nonce] = life
        return life

    def _look(self, tape: TapeReader, tapes: Collection[TapeReader]) -> RankLife:
        if waits(tape):
            return RankLife.DEAD
        if self.has_left(tape) or has_ended_with_parent(tape, tapes):
            return RankLife.FINISHED
        if not tape.identity.parent and self._has_died(tape):
            return RankLife.DEAD
        gone_since = self._gone_since.setdefault(tape.identity.nonce, time.monotonic())
        patience_s = TOGETHER_S if tape.identity.parent else REAPED_S
        return RankLife.RUNNING if time.monotonic() - gone_since < patience_s else RankLife.DEAD

    def has_left(self, tape: TapeReader) -> bool:
        """Whether a process has exited with code 0, waiting for nothing, without a word on its tape."""
        return has_left(tape, self._death_of(tape))

    def is_ending(self, tape: TapeReader) -> bool:
        """Whether a process has let go of its lock and is about to end: its exit code says whether that is a death."""
        return self._deaths is not None and self._deaths.holds(tape.identity.nonce) and not tape.is_alive()

    def _has_died(self, tape: TapeReader) -> bool:
        """Whether it is known how a process ended, and that this was no end in good order."""
        death = self._death_of(tape)
        return death is not None and death.status not in (None, 0)

    def _death_of(self, tape: TapeReader) -> Death | None:
        if self._deaths is not None:
            return self._deaths.death_of(tape.identity.nonce)
        return read_death(tape.path)
