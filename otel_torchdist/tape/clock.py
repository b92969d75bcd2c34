"""From a rank's monotonic clock to wall-clock time."""

from __future__ import annotations

from typing import Final

from otel_torchdist.tape.records import TapeIdentity, TapeStatus

MAX_WALL_NS: Final = (1 << 63) - 1
"""Beyond it OTLP has no time, and one such span would keep all others of its request from leaving."""
CLOCK_STEP_NS: Final = 50_000_000


class WallClock:
    """One offset per tape.

    It stays the same until the wall clock has been set (the newest pair differs by more than 50 ms): following the
    jitter of every pair would move spans against each other.
    """

    def __init__(self, identity: TapeIdentity) -> None:
        """Start with the pair that was taken when the tape was created."""
        self._offset_ns = identity.realtime_ns - identity.monotonic_ns

    def update(self, status: TapeStatus) -> None:
        """Look at the newest pair of clocks."""
        offset_ns = status.realtime_ns - status.monotonic_ns
        if abs(offset_ns - self._offset_ns) > CLOCK_STEP_NS:
            self._offset_ns = offset_ns

    def wall_ns(self, monotonic_ns: int) -> int:
        """Nanoseconds since the epoch for a monotonic time of this tape."""
        return min(max(monotonic_ns + self._offset_ns, 0), MAX_WALL_NS)
