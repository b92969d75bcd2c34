"""The moment that a diagnosis is about."""

from __future__ import annotations

from abc import ABC, abstractmethod

from otel_torchdist.cli.output.text import iso_time, length, time_of_day


class ReportedMoment(ABC):
    """The moment that a diagnosis is about, on the clock of the records."""

    __slots__ = ()

    @property
    @abstractmethod
    def is_now(self) -> bool:
        """Whether that moment is now."""

    @abstractmethod
    def before_s(self, monotonic_ns: int) -> float:
        """Return how long before the moment a time was, in seconds."""

    @abstractmethod
    def wall_ns(self, monotonic_ns: int) -> int:
        """Convert a time to nanoseconds since the epoch."""

    def time_of(self, monotonic_ns: int) -> str:
        """Return a time in UTC."""
        return iso_time(self.wall_ns(monotonic_ns))

    def ago(self, monotonic_ns: int) -> str:
        """Return how long before the moment a time was: `8.1 s earlier`."""
        return f"{length(self.before_s(monotonic_ns))} {'ago' if self.is_now else 'earlier'}"

    def when(self, monotonic_ns: int) -> str:
        """Return a time of day, and how long before the moment it was: `12:46:05.1 (8.1 s earlier)`."""
        return f"{time_of_day(self.wall_ns(monotonic_ns))} ({self.ago(monotonic_ns)})"


def rounded(seconds: float) -> float:
    """Return seconds to the millisecond."""
    return round(seconds, 3)
