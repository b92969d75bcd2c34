"""How often a rank calls operations: when it last did, and the longest time that it has taken to its next call."""

from __future__ import annotations

from typing import Final

from otel_torchdist.model.occupations import CallPace
from otel_torchdist.tape.reading.batch import Batch

NOTABLE_NS: Final = 1_000_000_000
"""Within a batch that spans less, gaps are not looked for: they would be no measure of what is unusually long."""

FIRST_CALLS: Final = 16
"""Gaps before this many calls are those of a program that starts: it loads data, compiles, and is slow at first."""


class PaceLog:
    """Follows the calls of one tape; what it keeps is three numbers."""

    def __init__(self) -> None:
        self._calls = 0
        self._reached_ns = 0
        self._longest_gap_ns = 0

    def observe(self, batch: Batch) -> None:
        """Process a batch of records. Time inside operations is no gap; the end of a step ends a gap."""
        ends = [
            *(one.completed_ns or 0 for one in batch.ended),
            *(one.ended_ns for one in batch.steps),
            *(one.entered_ns for one in batch.activities_entered),
            *(one.completed_ns or 0 for one in batch.activities_ended),
        ]
        last_ns = batch.entered[-1].entered_ns if batch.entered else 0
        if batch.entered and last_ns - (self._reached_ns or batch.entered[0].entered_ns) > NOTABLE_NS:
            calls = [(one.entered_ns, True) for one in batch.entered]
            self._look_for_gaps(sorted([*calls, *((end_ns, False) for end_ns in ends)]))
        self._calls += len(batch.entered)
        self._reached_ns = max([self._reached_ns, last_ns, *ends])

    def _look_for_gaps(self, moments: list[tuple[int, bool]]) -> None:
        reached_ns, calls = self._reached_ns, self._calls
        for moment_ns, is_call in moments:
            calls += is_call
            if is_call and reached_ns and calls > FIRST_CALLS:
                self._longest_gap_ns = max(self._longest_gap_ns, moment_ns - reached_ns)
            reached_ns = max(reached_ns, moment_ns)

    def shown(self, busy: float | None) -> CallPace:
        """What is known by now; `busy` as in `CallPace`."""
        return CallPace(self._reached_ns, self._longest_gap_ns, busy)
