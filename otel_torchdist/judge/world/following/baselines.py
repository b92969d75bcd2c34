"""Baselines of a rank: usual durations of operations by call site, and usual gaps between calls."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from otel_torchdist.model.kinds import Flag
from otel_torchdist.model.operations import EXACT, Operation
from otel_torchdist.model.rank_state.occupations import CallPace
from otel_torchdist.tape.reading.batch import Batch

# --- durations --------------------------------------------------------------------------------------------------------
# Usual durations by call site keep routine waits from being reported as stalls. A barrier around a checkpoint that
# takes a minute each time is as usual as an `all_reduce` that takes a millisecond.


LONG_NS: Final = 20_000_000
"""Minimum duration in ns that is remembered. Five times a shorter duration is still below any threshold."""
WINDOW: Final = 1_000
"""Number of recent operations of a call site in its percentile."""
RECENT: Final = 100
"""Number of recent operations of a call site in its maximum."""
MAX_LONG: Final = 64
MAX_CALL_SITES: Final = 4_096
MAX_ADDED_NS: Final = 60_000_000_000
MAX_ONCE_NS: Final = 120_000_000_000
"""Maximum tolerance in ns for a long wait that occurred only once. The first step is often the longest by far, and
backends give up after some minutes."""
RECURRENCE_RATIO: Final = 2
"""A wait has recurred if another wait lasted at least 1/`RECURRENCE_RATIO` as long."""

_END_UNSEEN: Final = int(Flag.END_BY_WAIT | Flag.COALESCED)

BaselineKey: TypeAlias = tuple[int, int, int]


class Baselines:
    """Usual durations of one rank's operations, by call site."""

    def __init__(self, site_of: Callable[[int], int] = int) -> None:
        """Start without any history.

        Args:
            site_of: Maps a record's call site id to the id of the line alone, without its call path.
        """
        self._site_of = site_of
        self._counts: Counter[BaselineKey] = Counter()
        self._long: dict[BaselineKey, deque[tuple[int, int]]] = {}
        self._longest_ns: dict[BaselineKey, int] = {}
        # Each pass needs the tolerance again. It is cached until the next operation of the call site ends.
        self._tolerance_ns: dict[BaselineKey, int] = {}

    def ended(self, operation: Operation) -> None:
        """Record an operation that has ended."""
        key = self._key(operation)
        self._counts[key] += 1
        if self._tolerance_ns:
            self._tolerance_ns.pop(key, None)
        took_ns = _duration_ns(operation)
        if took_ns < LONG_NS:
            return
        if key not in self._long and len(self._long) >= MAX_CALL_SITES:
            self._long.clear()
            self._counts.clear()
            self._longest_ns.clear()
            self._tolerance_ns.clear()
        self._long.setdefault(key, deque(maxlen=MAX_LONG)).append((self._counts[key], took_ns))
        self._longest_ns[key] = max(self._longest_ns.get(key, 0), took_ns)

    def longest_ns(self, operation: Operation) -> int:
        """Return the longest observed duration at this call site; 0 if all were short."""
        return self._longest_ns.get(self._key(operation), 0)

    def tolerance_ns(self, operation: Operation) -> int:
        """Return the time for which an operation may stay open at its call site; 0 if unknown.

        The tolerance is five times the 99th percentile or 1.5 times the recent maximum, whichever is greater. Each of
        the two may exceed the percentile or maximum by at most a minute. A long wait that occurred only once counts
        for at most two minutes.
        """
        key = self._key(operation)
        remembered = self._long.get(key)
        if not remembered:
            return 0
        known_ns = self._tolerance_ns.get(key)
        if known_ns is None:
            known_ns = self._tolerance_ns[key] = self._of_call_site_ns(key, remembered)
        return known_ns

    def _of_call_site_ns(self, key: BaselineKey, remembered: Iterable[tuple[int, int]]) -> int:
        count = self._counts[key]
        longest_first = sorted(remembered, key=lambda wait: -wait[1])
        window = [(nth, took_ns) for nth, took_ns in longest_first if nth > count - WINDOW]
        tolerance_ns = _tolerance_of(window, count)
        if len(window) > 1 and window[1][1] * RECURRENCE_RATIO >= window[0][1]:
            return tolerance_ns
        return max(_tolerance_of(window[1:], count), min(tolerance_ns, MAX_ONCE_NS))

    def _key(self, operation: Operation) -> BaselineKey:
        # Calls from C++ have no call site. Their signature distinguishes some of them.
        site = self._site_of(operation.call_site)
        return operation.group, site, 0 if site else operation.signature


def _tolerance_of(window: list[tuple[int, int]], count: int) -> int:
    """Compute the tolerance from long waits.

    Args:
        window: Ordinal number and duration of each wait, longest first.
        count: Number of all waits, long or short.
    """
    above = min(count, WINDOW) // 100
    percentile_ns = window[above][1] if len(window) > above else 0
    longest_ns = next((took_ns for nth, took_ns in window if nth > count - RECENT), 0)
    of_percentile_ns = min(5 * percentile_ns, percentile_ns + MAX_ADDED_NS)
    return max(of_percentile_ns, min(longest_ns * 3 // 2, longest_ns + MAX_ADDED_NS))


def _duration_ns(operation: Operation) -> int:
    """Return the duration counted as the age of a wait is counted; 0 if the end is not exact."""
    if operation.how not in EXACT or operation.completed_ns is None:
        return 0
    if operation.completed_ns - operation.entered_ns < LONG_NS:
        return 0  # the age starts to count at the call or later
    since_ns = operation.arrived_ns
    if int(operation.flags) & _END_UNSEEN and operation.returned_ns is not None:
        since_ns = operation.wait_entered_ns or operation.completed_ns
    return operation.completed_ns - since_ns


# --- pace -------------------------------------------------------------------------------------------------------------
# The pace of calls: the time of the last call, and the longest gap between two calls.


NOTABLE_NS: Final = 1_000_000_000
"""Minimum span in ns of a batch that is searched for gaps. Shorter gaps are never unusual."""

FIRST_CALLS: Final = 16
"""Number of calls at the start whose gaps are ignored: the program still loads data and compiles."""


class PaceLog:
    """Tracks the pace of calls on one tape in three numbers."""

    def __init__(self) -> None:
        self._calls = 0
        self._reached_ns = 0
        self._longest_gap_ns = 0

    def observe(self, batch: Batch) -> None:
        """Process a batch of records. A gap ends with an operation or a step; time inside operations does not count."""
        ends = [
            *(operation.completed_ns or 0 for operation in batch.ended),
            *(step.ended_ns for step in batch.steps),
            *(activity.entered_ns for activity in batch.activities_entered),
            *(activity.completed_ns or 0 for activity in batch.activities_ended),
        ]
        last_ns = batch.entered[-1].entered_ns if batch.entered else 0
        if batch.entered and last_ns - (self._reached_ns or batch.entered[0].entered_ns) > NOTABLE_NS:
            calls = [(operation.entered_ns, True) for operation in batch.entered]
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
        """Return the pace so far; `busy` as in `CallPace`."""
        return CallPace(self._reached_ns, self._longest_gap_ns, busy)
