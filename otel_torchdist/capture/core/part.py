"""The interface of the parts of a capture session, and the order of their calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.torch_api import Patches
    from otel_torchdist.model.recording_level import RecordingLevel


class SessionPart:
    """A part of a capture session. All methods are optional.

    The session calls `hook` and `begins` in the order of its parts, and all other methods in reverse order: the
    dependencies of a part begin before it and end after it.
    """

    def hook(self, patches: Patches) -> None:
        """Start following this process. `patches` restores the attributes that it replaces."""

    def begins(self, recorder: Recorder) -> None:
        """Start recording to a new tape."""

    def beat(self, recorder: Recorder) -> None:
        """Do periodic work. Called once a second on the rank thread, while there is a tape."""

    def reduce(self, level: RecordingLevel) -> None:
        """Record only what a level includes. Called with every new tape, and whenever its level rises."""

    def poll(self) -> bool:
        """Record operations that have ended. Return whether to poll again."""
        return False

    def stops(self, *, has_failed: bool) -> None:
        """Wait briefly for operations in flight, before the tape ends. A signal handler may raise meanwhile.

        Args:
            has_failed: Whether an exception ends the process. Its launcher may kill it at any moment.
        """

    def ends(self, recorder: Recorder) -> None:
        """Record the state of open operations and drop them, because the tape is about to be closed."""

    def leave_groups(self) -> None:
        """Drop all process groups, which are destroyed. The tape continues."""

    def unhook(self) -> None:
        """Undo `hook`, except for what `patches` restores."""

    def close(self, *, at_exit: bool) -> None:
        """Release resources that outlive tapes.

        Args:
            at_exit: Whether the process is exiting. A device may be gone by then.
        """

    def forget_in_child(self) -> None:
        """Drop the parent's state in a forked child, which never writes to its parent's tape."""


class RecordingPart(SessionPart):
    """A part that keeps the current recorder, or None without a tape."""

    def __init__(self) -> None:
        """Initialize without a recorder."""
        self.recorder: Recorder | None = None

    def begins(self, recorder: Recorder) -> None:
        """Start recording to a new tape."""
        self.recorder = recorder

    def ends(self, recorder: Recorder) -> None:
        """Stop recording."""
        self.recorder = None

    def forget_in_child(self) -> None:
        """Stop recording."""
        self.recorder = None
