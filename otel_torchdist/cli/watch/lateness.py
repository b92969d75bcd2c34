"""How much of their time the others lose to each rank, over the last comparisons."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Final

from otel_torchdist.stall.events import ArrivalsCompared

LATENESS_OVER_NS: Final = 30_000_000_000


class LatenessMeter:
    """Adds up what was compared in the last half minute."""

    def __init__(self, begun_ns: int) -> None:
        """Begin at a monotonic time."""
        self._begun_ns = begun_ns
        self._compared: deque[tuple[int, Counter[int]]] = deque()

    def observe(self, event: ArrivalsCompared, now_ns: int) -> None:
        """Take in a comparison."""
        late_ns: Counter[int] = Counter()
        for group in event.lateness:
            late_ns.update(group.late_ns)
        self._compared.append((now_ns, late_ns))

    def shares(self, now_ns: int) -> Mapping[int, float]:
        """By rank, the share of the others' time that they waited for it alone, from 0 to 1."""
        while self._compared and self._compared[0][0] < now_ns - LATENESS_OVER_NS:
            self._compared.popleft()
        total: Counter[int] = Counter()
        for _, late_ns in self._compared:
            total.update(late_ns)
        span_ns = max(min(LATENESS_OVER_NS, now_ns - self._begun_ns), 1)
        return {rank: min(late_ns / span_ns, 1.0) for rank, late_ns in total.items()}
