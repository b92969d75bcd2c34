"""The current tape of this process, and the session parts that record to it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from otel_torchdist import guard
from otel_torchdist.errors import TapeError
from otel_torchdist.model.kinds import TapeState

if TYPE_CHECKING:
    from otel_torchdist.capture.core.part import SessionPart
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.model.names import RaisedName
    from otel_torchdist.model.recording_level import RecordingLevel

WINDOW: Final = 64
"""Number of collectives of the default group per step, if there is no other source of steps."""

_logger = logging.getLogger("otel_torchdist")


class RunRecording:
    """The sequence of tapes of this process.

    Attributes:
        recorder: The recorder of the current tape; None between tapes.
        parts: The parts that record to it; see `SessionPart` for their order.
        begins_tapes: Whether tapes may begin: only while the session is installed and does not pause.
        before_tape: Called before each tape. May set `begins_tapes`.
    """

    def __init__(
        self,
        make_recorder: Callable[[int, int, str], Recorder],
        begun: Callable[[Recorder], None],
    ) -> None:
        """Initialize without a tape and without parts.

        Args:
            make_recorder: Creates a tape, given the rank, the world size and the world. May raise TapeError.
            begun: Called once all parts record to a new tape.
        """
        self._make_recorder = make_recorder
        self._begun = begun
        self.recorder: Recorder | None = None
        self.parts: Sequence[SessionPart] = ()
        self.begins_tapes = False
        self.before_tape: Callable[[], None] = _nothing

    def begin(self, rank: int, world_size: int, world: str = "") -> Recorder | None:
        """Begin a tape. Return None if nothing is recorded.

        Args:
            rank: This rank.
            world_size: Number of ranks.
            world: As in `TapeIdentity`.
        """
        if self.begins_tapes:
            self.before_tape()
        if not self.begins_tapes:
            return None
        try:
            self.recorder = recorder = self._make_recorder(rank, world_size, world)
        except TapeError as error:
            self.begins_tapes = False
            _logger.warning("otel_torchdist is off in this process, nothing is recorded: %s", error)
            return None
        for part in self.parts:
            with guard.guarded(_name_of(part)):
                part.begins(recorder)
        recorder.begin(WINDOW)
        self._begun(recorder)
        return recorder

    def end(self, state: TapeState, failure: RaisedName | None = None, is_hurried: bool = False) -> None:
        """End the current tape, if there is one.

        Args:
            state: Final state of the tape.
            failure: The exception that ends it, if there is one.
            is_hurried: Whether not to wait for operations in flight.
        """
        recorder, self.recorder = self.recorder, None
        try:
            for part in reversed(self.parts):
                part.stops(has_failed=is_hurried or state is not TapeState.FINISHED)
        finally:  # a signal handler may raise while we wait
            if recorder is not None:
                recorder.stop()
                for part in reversed(self.parts):
                    with guard.guarded(_name_of(part)):
                        part.ends(recorder)
                recorder.close(state, failure)

    def reduce(self, level: RecordingLevel) -> None:
        """Record only what a level includes."""
        for part in self.parts:
            with guard.guarded(_name_of(part)):
                part.reduce(level)

    def leave_groups(self) -> None:
        """Drop all process groups. The tape continues."""
        for part in reversed(self.parts):
            part.leave_groups()

    def beat(self) -> None:
        """Do periodic work. Called once a second."""
        recorder = self.recorder
        if recorder is None:
            return
        recorder.beat()
        for part in reversed(self.parts):
            with guard.guarded(_name_of(part)):
                part.beat(recorder)

    def poll(self) -> bool:
        """Record operations that have ended. Return whether to poll again."""
        has_more = False
        for part in reversed(self.parts):
            has_more = part.poll() or has_more
        return has_more

    def record_count(self) -> int:
        """Return the number of records so far."""
        recorder = self.recorder
        return recorder.tape.next_number() if recorder is not None else 0

    def forget_in_child(self) -> None:
        """Drop the parent's tape: a child is not a rank until it creates its own group."""
        self.recorder = None
        for part in reversed(self.parts):
            with guard.guarded(_name_of(part)):
                part.forget_in_child()


def _nothing() -> None:
    """Do nothing."""


def _name_of(part: SessionPart) -> str:
    return type(part).__name__
