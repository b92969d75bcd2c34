"""The parts of a capture session: what the session calls in each of them, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.torch_api import Patches


class SessionPart:
    """A part of a capture session; each method does nothing unless a part overrides it.

    The session keeps its parts in one order. It calls `hook` and `begins` in this order, and all other methods in the
    reverse order: what a part uses has begun before it, and ends after it.
    """

    def hook(self, patches: Patches) -> None:
        """Follow this process from now on; `patches` restores what it replaces."""

    def begins(self, recorder: Recorder) -> None:
        """Record to a new tape."""

    def beat(self, recorder: Recorder) -> None:
        """Do what is due once a second; called on the rank thread while there is a tape."""

    def poll(self) -> bool:
        """Record what has ended since the last call; return whether anything is left to poll for."""
        return False

    def stops(self, *, has_failed: bool) -> None:
        """Wait shortly for what is in flight, before the tape ends; a signal handler may raise meanwhile.

        Args:
            has_failed: Whether an exception ends the process: its launcher may kill it at any moment.
        """

    def ends(self, recorder: Recorder) -> None:
        """Record what is known of what is still open, and forget it: the tape is about to be closed."""

    def leave_groups(self) -> None:
        """Forget all process groups: they are destroyed, and the tape goes on."""

    def unhook(self) -> None:
        """Undo `hook`, except for what `patches` restores."""

    def close(self, *, at_exit: bool) -> None:
        """Release what outlives tapes, after the last one.

        Args:
            at_exit: Whether the process ends: a device may be gone by then.
        """

    def forget_in_child(self) -> None:
        """Forget everything of the parent in a forked child, which never writes to its parent's tape."""


class RecordingPart(SessionPart):
    """A part that records to the current tape.

    Attributes:
        recorder: The current recorder; None if there is none.
    """

    def __init__(self) -> None:
        """Initialize without a recorder."""
        self.recorder: Recorder | None = None

    def begins(self, recorder: Recorder) -> None:
        """Record to a new tape."""
        self.recorder = recorder

    def ends(self, recorder: Recorder) -> None:
        """Record nothing any more."""
        self.recorder = None

    def forget_in_child(self) -> None:
        """Record nothing any more."""
        self.recorder = None
