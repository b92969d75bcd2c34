"""Classifies processes that disappeared without reporting why: not all of them died.

A rank may exit through `os._exit(0)`, bypassing every handler, as some programs do when their teardown hangs. A helper,
which is a process that a rank has started and that created a group of its own, is terminated when its rank ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

from otel_torchdist.job.runs.deaths import read_death
from otel_torchdist.job.runs.lives import has_ended_with_parent, has_left, is_helper, life_after_exit, life_of, waits
from otel_torchdist.model.lives import Death, RankLife
from otel_torchdist.processes.recorded_deaths import Deaths
from otel_torchdist.tape.reading.reader import TapeReader

REAPED_S: Final = 1.0
"""How long to wait for the exit code of a process, which is known once its parent has reaped it."""
TOGETHER_S: Final = 5.0
"""A helper that has been gone for no longer than this may have ended with its rank, whose own end takes some time."""


class SilentEnds:
    """Distinguishes deaths from clean exits, and remembers the results."""

    def __init__(self, deaths: Deaths | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Know no end yet.

        Args:
            deaths: The ends of processes; from the files that an agent has written if None.
            clock: Returns the monotonic time in seconds.
        """
        self._now = clock
        self._deaths = deaths
        self._gone_since: dict[int, float] = {}
        self._settled: dict[int, RankLife] = {}

    def life_of(self, tape: TapeReader, tapes: Collection[TapeReader]) -> RankLife:
        """Return what became of the process that writes a tape; `RUNNING` also while that cannot be known yet.

        Args:
            tape: The tape of a rank or of a helper, polled to its end.
            tapes: All tapes that are read.

        Raises:
            TapeError: The tape is damaged.
        """
        nonce = tape.identity.nonce
        known = self._settled.get(nonce)
        if known is not None:
            return known
        life = life_of(tape)
        if life is RankLife.FINISHED:  # not settled: its exit code is known later
            return life_after_exit(self._death_of(tape))
        if life is RankLife.DEAD:
            life = self._classify(tape, tapes)
        if life is not RankLife.RUNNING:
            self._settled[nonce] = life
        return life

    def _classify(self, tape: TapeReader, tapes: Collection[TapeReader]) -> RankLife:
        if waits(tape):
            return RankLife.DEAD
        if self.has_left(tape) or has_ended_with_parent(tape, tapes):
            return RankLife.FINISHED
        helps = is_helper(tape, tapes)
        if not helps and self._has_died(tape):
            return RankLife.DEAD
        gone_since = self._gone_since.setdefault(tape.identity.nonce, self._now())
        deadline_s = TOGETHER_S if helps else REAPED_S
        return RankLife.RUNNING if self._now() - gone_since < deadline_s else RankLife.DEAD

    def has_left(self, tape: TapeReader) -> bool:
        """Whether a process exited with code 0, waiting for nothing, without recording that on its tape."""
        return has_left(tape, self._death_of(tape))

    def is_ending(self, tape: TapeReader) -> bool:
        """Whether a process has released its lock and is about to end: its exit code will show whether it died."""
        return self._deaths is not None and self._deaths.holds(tape.identity.nonce) and not tape.is_alive()

    def _has_died(self, tape: TapeReader) -> bool:
        """Whether it is known that a process did not exit cleanly."""
        death = self._death_of(tape)
        return death is not None and death.status not in (None, 0)

    def _death_of(self, tape: TapeReader) -> Death | None:
        if self._deaths is not None:
            return self._deaths.death_of(tape.identity.nonce)
        return read_death(tape.path, tape.owner)
