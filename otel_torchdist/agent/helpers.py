"""What became of helpers: processes that ranks have started and that made groups of their own."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from otel_torchdist.agent.lives import Life, life_of
from otel_torchdist.stall.helpers import has_outlived_parent
from otel_torchdist.tape.reader import TapeReader
from otel_torchdist.tape.records import TapeError

TOGETHER_S: Final = 5.0
"""A helper that is gone for no longer than this may have ended together with its rank, whose end takes its time."""


class HelperLives:
    """Tells helpers that ended with their ranks, which is no death, from those that died. Remembers what it found."""

    def __init__(self) -> None:
        """No helper is gone yet."""
        self._gone_since: dict[int, float] = {}
        self._settled: dict[int, Life] = {}

    def life_of(self, tape: TapeReader, tapes: Collection[TapeReader]) -> Life:
        """What became of the process that writes a tape; `RUNNING` while it cannot be known yet.

        Args:
            tape: Of a rank or of a helper. It has been polled to its end.
            tapes: All tapes that are read.

        Raises:
            TapeError: The tape is damaged.
        """
        if not tape.identity.parent:
            return life_of(tape)
        nonce = tape.identity.nonce
        life = self._settled.get(nonce)
        if life is None:
            life = self._look(tape, tapes)
            if life is not Life.RUNNING:
                self._settled[nonce] = life
        return life

    def _look(self, tape: TapeReader, tapes: Collection[TapeReader]) -> Life:
        life = life_of(tape)
        if life is not Life.DEAD or any(one.waiting_since_ns is not None for one in tape.open_operations()):
            return life
        if has_ended_with_parent(tape, tapes):
            return Life.FINISHED
        gone_since = self._gone_since.setdefault(tape.identity.nonce, time.monotonic())
        return Life.RUNNING if time.monotonic() - gone_since < TOGETHER_S else Life.DEAD


def has_ended_with_parent(tape: TapeReader, tapes: Collection[TapeReader]) -> bool:
    """Whether a helper that is gone has lived for as long as the rank that started it.

    Args:
        tape: The helper's.
        tapes: All that are seen.
    """
    running = [other.identity for other in tapes if _runs(other)]
    return has_outlived_parent(tape.identity, [other.identity for other in tapes], running)


def _runs(tape: TapeReader) -> bool:
    try:
        return life_of(tape) is Life.RUNNING
    except TapeError:
        return False
