"""A piece of long work, and its progress in figures."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from otel_torchdist.model.text import amount

BYTES: Final = "bytes"
SECONDS: Final = "s"


@dataclass(slots=True, eq=False)
class Work:
    """A piece of work in progress.

    Attributes:
        title: A verb in its -ing form and an object: `Reading tapes`.
        unit: Plural noun of the counted items, `BYTES`, or `SECONDS` for a wait of known length; '' to count nothing.
        total: Number of items; None if unknown.
        done: Number of completed items; stays 0 for `SECONDS`.
        begun_s: Start, by the monotonic clock.
    """

    title: str
    unit: str
    total: int | None
    done: int = 0
    begun_s: float = field(default_factory=time.monotonic)

    def advance(self, amount: int) -> None:
        """Count completed items."""
        self.done += amount

    def completed(self, now_s: float) -> float:
        """Return the completed part of `total`, in the same unit."""
        return now_s - self.begun_s if self.unit == SECONDS else self.done

    def figures(self, now_s: float) -> str:
        """Describe the progress: `1,203 of 4,096 tapes, 95/s, 30 s left`."""
        elapsed_s = max(now_s - self.begun_s, 1e-9)
        if not self.unit:
            return _whole_seconds(elapsed_s)
        if self.unit == SECONDS:
            return f"{_whole_seconds(max((self.total or 0) - elapsed_s, 0))} left"
        rate = self.done / elapsed_s
        counted = self._quantity(self.done) if self.total is None else self._of(self.total)
        if self.unit == BYTES:
            parts = [counted, f"{amount(round(rate))}/s"]
        else:
            parts = [f"{counted} {self.unit}", f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"]
        if self.total is not None and 0 < self.done < self.total:
            parts.append(f"{_whole_seconds((self.total - self.done) / rate)} left")
        return ", ".join(parts)

    def _of(self, total: int) -> str:
        return f"{self._quantity(self.done)} of {self._quantity(total)}"

    def _quantity(self, number: int) -> str:
        return amount(number) if self.unit == BYTES else f"{number:,}"


def _whole_seconds(seconds: float) -> str:
    """Format a duration as `30 s` or `2 min 5 s`. In a bar, which is redrawn 8 times a second, tenths would flicker."""
    minutes, whole_s = divmod(round(seconds), 60)
    return f"{minutes} min {whole_s} s" if minutes else f"{whole_s} s"
