"""Converts a rank's monotonic clock to wall-clock time."""

from __future__ import annotations

from typing import Final

from otel_torchdist.tape.identity import TapeIdentity
from otel_torchdist.tape.status import TapeStatus

MAX_WALL_NS: Final = (1 << 63) - 1
"""OTLP cannot represent later times, and one such span would make the export of its whole request fail."""
CLOCK_STEP_NS: Final = 50_000_000


class WallClock:
    """Converts the times of one tape with a single offset.

    The offset changes only when the wall clock has been set (the newest pair differs by more than 50 ms): following
    the jitter of every pair would shift spans relative to each other.
    """

    def __init__(self, identity: TapeIdentity) -> None:
        """Start from the clock pair taken when the tape was created."""
        self._offset_ns = identity.realtime_ns - identity.monotonic_ns

    def update(self, status: TapeStatus) -> None:
        """Adopt the offset of the newest clock pair if the wall clock has been set."""
        offset_ns = status.realtime_ns - status.monotonic_ns
        if abs(offset_ns - self._offset_ns) > CLOCK_STEP_NS:
            self._offset_ns = offset_ns

    def wall_ns(self, monotonic_ns: int) -> int:
        """Convert a monotonic time of this tape to nanoseconds since the epoch."""
        return min(max(monotonic_ns + self._offset_ns, 0), MAX_WALL_NS)
