"""How long the operations of a call site usually take, so that what is routine is no stall.

A barrier around a checkpoint that takes a minute each time is as usual as an `all_reduce` that takes a millisecond.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final, TypeAlias

from otel_torchdist.tape.layout import Flag, How
from otel_torchdist.tape.records import Operation

LONG_NS: Final = 20_000_000
"""What is shorter is not remembered: five times as much is below any threshold."""
WINDOW: Final = 1_000
"""Operations of a call site that count for its percentile."""
RECENT: Final = 100
"""Those that count for its maximum."""
MAX_LONG: Final = 64
MAX_SITES: Final = 4_096
MOST_ADDED_NS: Final = 60_000_000_000
MOST_ONCE_NS: Final = 120_000_000_000
"""What a wait earns at most that has come only once. The first step is often the longest by far, and backends give up
after some minutes."""
SIMILAR: Final = 2
"""A wait has come more than once if another one was at least this part of it."""

_END_UNSEEN: Final = int(Flag.END_BY_WAIT | Flag.COALESCED)
_KNOWN_ENDS: Final = frozenset({How.CALL, How.WAIT, How.EVENT})

BaselineKey: TypeAlias = tuple[int, int, int]


class Baselines:
    """One rank's call sites, and how long each of them usually takes."""

    def __init__(self) -> None:
        """Nothing is usual yet."""
        self._counts: Counter[BaselineKey] = Counter()
        self._long: dict[BaselineKey, deque[tuple[int, int]]] = {}
        self._patience_ns: dict[BaselineKey, int] = {}  # as of the last end at that site, for each look asks again

    def ended(self, operation: Operation) -> None:
        """Take note of an operation that has ended."""
        site = _key(operation)
        self._counts[site] += 1
        self._patience_ns.pop(site, None)
        took_ns = _duration_ns(operation)
        if took_ns < LONG_NS:
            return
        if site not in self._long and len(self._long) >= MAX_SITES:
            self._long.clear()
            self._counts.clear()
            self._patience_ns.clear()
        self._long.setdefault(site, deque(maxlen=MAX_LONG)).append((self._counts[site], took_ns))

    def tolerance_ns(self, operation: Operation) -> int:
        """For how long an operation may be open before it is longer than usual for its call site; 0 if not known.

        Five times the 99th percentile, or half as much again as the longest of late, but at most a minute more than
        that; and not more than two minutes for what has come only once.
        """
        site = _key(operation)
        remembered = self._long.get(site)
        if not remembered:
            return 0
        known_ns = self._patience_ns.get(site)
        if known_ns is None:
            known_ns = self._patience_ns[site] = self._of_site_ns(site, remembered)
        return known_ns

    def _of_site_ns(self, site: BaselineKey, remembered: Iterable[tuple[int, int]]) -> int:
        count = self._counts[site]
        longest_first = sorted(remembered, key=lambda one: -one[1])
        window = [(nth, took_ns) for nth, took_ns in longest_first if nth > count - WINDOW]
        tolerance_ns = _patience_ns(window, count)
        if len(window) > 1 and window[1][1] * SIMILAR >= window[0][1]:
            return tolerance_ns
        return max(_patience_ns(window[1:], count), min(tolerance_ns, MOST_ONCE_NS))


def _patience_ns(window: list[tuple[int, int]], count: int) -> int:
    """What long waits earn.

    Args:
        window: The number of each and how long it took, longest first.
        count: How many waits there have been, long or short.
    """
    above = min(count, WINDOW) // 100
    percentile_ns = window[above][1] if len(window) > above else 0
    longest_ns = next((took_ns for nth, took_ns in window if nth > count - RECENT), 0)
    of_percentile_ns = min(5 * percentile_ns, percentile_ns + MOST_ADDED_NS)
    return max(of_percentile_ns, min(longest_ns * 3 // 2, longest_ns + MOST_ADDED_NS))


def _key(operation: Operation) -> BaselineKey:
    # Calls from C++ have no call site of their own; their signature tells some of them apart.
    return operation.group, operation.call_site, 0 if operation.call_site else operation.signature


def _duration_ns(operation: Operation) -> int:
    """From where its age would have counted; 0 when its end is not known well."""
    if operation.how not in _KNOWN_ENDS or operation.completed_ns is None:
        return 0
    since_ns = operation.arrived_ns
    if int(operation.flags) & _END_UNSEEN and operation.returned_ns is not None:
        since_ns = operation.wait_entered_ns or operation.completed_ns
    return operation.completed_ns - since_ns
