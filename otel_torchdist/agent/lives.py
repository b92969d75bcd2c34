"""How the process behind a tape fares."""

from __future__ import annotations

import enum

from otel_torchdist.tape.layout import TapeState
from otel_torchdist.tape.reader import TapeReader


class Life(enum.Enum):
    """What became of a rank; the value completes "rank 2 …"."""

    RUNNING = "is running"
    FINISHED = "has ended"
    FAILED = "has failed"
    """It told of the exception that ended it."""
    DEAD = "is dead: its process is gone without a word"


def life_of(tape: TapeReader) -> Life:
    """What became of the rank that writes a tape.

    Raises:
        TapeError: The tape is damaged.
    """
    # In this order: a process says that it has finished before it lets go of its lock.
    is_alive = tape.is_alive()
    state = tape.status().state
    if state is TapeState.FINISHED:
        return Life.FINISHED
    if state is TapeState.FAILED:
        return Life.FAILED
    return Life.RUNNING if is_alive else Life.DEAD


def failure_of(tape: TapeReader) -> str:
    """The type of the exception that ended a rank, or ''.

    Raises:
        TapeError: The tape is damaged.
    """
    return tape.names.text(tape.status().failure) or ""
