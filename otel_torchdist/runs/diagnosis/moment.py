"""The moment of a diagnosis."""

from __future__ import annotations

from abc import ABC, abstractmethod

from otel_torchdist.model.times import iso_time, length, time_of_day


class ReportedMoment(ABC):
    """The moment of a diagnosis, on the clock of the records."""

    __slots__ = ()

    @property
    @abstractmethod
    def is_now(self) -> bool:
        """Whether that moment is now."""

    @abstractmethod
    def seconds_since(self, monotonic_ns: int) -> float:
        """Return the seconds from a time to the moment."""

    @abstractmethod
    def wall_ns(self, monotonic_ns: int) -> int:
        """Convert a time to nanoseconds since the epoch."""

    def time_of(self, monotonic_ns: int) -> str:
        """Format a time in UTC."""
        return iso_time(self.wall_ns(monotonic_ns))

    def ago(self, monotonic_ns: int) -> str:
        """Format the distance from a time to the moment: `8.1 s earlier`."""
        return f"{length(self.seconds_since(monotonic_ns))} {'ago' if self.is_now else 'earlier'}"

    def when(self, monotonic_ns: int) -> str:
        """Format a time of day, with its distance to the moment: `12:46:05.1 (8.1 s earlier)`."""
        return f"{time_of_day(self.wall_ns(monotonic_ns))} ({self.ago(monotonic_ns)})"


def rounded(seconds: float) -> float:
    """Round seconds to the millisecond."""
    return round(seconds, 3)
