"""How fast a rank goes: steps and collectives a second, over the last few seconds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from otel_torchdist.tape.layout import Flag, RecordKind
from otel_torchdist.tape.reader import Batch

RATES_OVER_NS: Final = 5_000_000_000
_POINT_TO_POINT: Final = int(Flag.POINT_TO_POINT)


@dataclass(frozen=True, slots=True)
class Rates:
    """Counts a second.

    Attributes:
        steps: Steps that ended.
        collectives: Collectives that were entered.
    """

    steps: float
    collectives: float


class RateMeter:
    """Counts what the polls of one tape find."""

    def __init__(self, begun_ns: int) -> None:
        """Count from the beginning of the tape, by the monotonic clock."""
        self._begun_ns = begun_ns
        self._counts: deque[tuple[int, int, int]] = deque()

    def observe(self, batch: Batch, now_ns: int) -> None:
        """Take in what a poll has found; what is older than the window does not count."""
        oldest_ns = now_ns - RATES_OVER_NS
        steps = sum(mark.ended_ns > oldest_ns for mark in batch.steps)
        collectives = sum(
            operation.entered_ns > oldest_ns
            and operation.kind is RecordKind.OPERATION
            and not int(operation.flags) & _POINT_TO_POINT
            for operation in batch.entered
        )
        self._counts.append((now_ns, steps, collectives))
        while self._counts[0][0] < oldest_ns:
            self._counts.popleft()

    def rates(self, now_ns: int) -> Rates:
        """The rates over the window, or since the beginning of the tape if that is shorter."""
        seconds = max(min(RATES_OVER_NS, now_ns - self._begun_ns), 1) / 1e9
        steps = sum(count[1] for count in self._counts)
        return Rates(steps / seconds, sum(count[2] for count in self._counts) / seconds)
