"""Sums over the calls of one row."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from otel_torchdist.sources.history.call_kinds import TIMED, CallKind
from otel_torchdist.sources.history.call_table import OPEN, RankCalls


class Throughput:
    """Bytes moved and the time taken. The sums do not depend on the order of additions.

    Attributes:
        ns: Sum of times, in nanoseconds.
    """

    __slots__ = ("_bytes", "ns")

    def __init__(self) -> None:
        self.ns = 0
        self._bytes: Counter[float] = Counter()

    def add(self, size: int, factor: float, ns: int) -> None:
        """Add operations of `size` bytes in total. Their bus bandwidth is `factor` times the algorithm bandwidth."""
        self._bytes[factor] += size
        self.ns += ns

    @property
    def algorithm_bandwidth(self) -> float | None:
        """Bytes per second; None if nothing was moved."""
        moved = sum(self._bytes.values())
        return moved / self.ns * 1e9 if self.ns and moved else None

    @property
    def bus_bandwidth(self) -> float | None:
        """Bytes per second; None if nothing was moved."""
        if not self.ns or not any(self._bytes.values()):
            return None
        return math.fsum(factor * size for factor, size in self._bytes.items()) / self.ns * 1e9


class KindTally:
    """Counts the calls of one rank and one kind.

    Attributes:
        open: Number of calls in flight.
        failed: Number of calls that raised.
        durations: Durations of timed calls, in nanoseconds.
    """

    __slots__ = ("calls", "durations", "failed", "open")

    def __init__(self) -> None:
        self.calls = 0
        self.open = 0
        self.failed = 0
        self.durations = array("q")


class KindRow(NamedTuple):
    """The row that counts a rank's calls of one kind.

    Attributes:
        tally: The counts of the row.
        size: Size of each operation in bytes, see `size_of`.
        factor: Bus bandwidth divided by algorithm bandwidth; None if it is not defined.
    """

    kind: CallKind
    tally: Tally
    size: int | None
    factor: float | None


def tallies_of(calls: RankCalls) -> list[KindTally]:
    """Count the calls of one rank, by index of their kind."""
    tallies = [KindTally() for _ in calls.kinds]
    for kind, number in Counter(calls.kind).items():
        tallies[kind].calls = number
    columns = zip(calls.kind, calls.started, calls.ended, calls.known_times, strict=True)
    for index, (kind, started_ns, ended_ns, known_times) in enumerate(columns):
        if known_times & TIMED:
            tallies[kind].durations.append(ended_ns - started_ns)
        elif ended_ns == OPEN:
            tallies[kind].open += 1
        elif calls.has_raised(index):
            tallies[kind].failed += 1
    return tallies


class Tally:
    """Counts the calls of one row.

    Attributes:
        calls: Number of calls, by rank.
        open: Number of calls in flight.
        failed: Number of calls that raised.
        message_bytes: Bytes that ranks contributed.
        durations: Durations of timed calls, in nanoseconds.
        throughput: Bytes moved by timed calls, and their whole durations.
        split: Number of timed calls with a known last arrival.
        waited_ns: Time that split calls waited for the last arrival.
        transfer_ns: Time that split calls took after the last arrival.
        transfers: Bytes moved by split calls, and their times after the last arrival.
        lateness: For each rank, the nanoseconds that the others waited for it alone, one per operation.
        compared: Number of operations at which a call of this row was the only last arrival.
        groups: Keys of the groups of the calls.
        operations: Operations of the calls.
    """

    __slots__ = (
        "calls",
        "compared",
        "durations",
        "failed",
        "groups",
        "lateness",
        "message_bytes",
        "open",
        "operations",
        "split",
        "throughput",
        "transfer_ns",
        "transfers",
        "waited_ns",
    )

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()
        self.open = 0
        self.failed = 0
        self.message_bytes = 0
        self.durations = array("q")
        self.throughput = Throughput()
        self.split = 0
        self.waited_ns = 0
        self.transfer_ns = 0
        self.transfers = Throughput()
        self.lateness: dict[int, array[int]] = {}
        self.compared = 0
        self.groups: set[str] = set()
        self.operations: set[str] = set()

    def count(self, rank: int, row: KindRow, counted: KindTally) -> None:
        """Add the calls of one rank and one kind."""
        kind, _, size, factor = row
        self.calls[rank] += counted.calls
        self.open += counted.open
        self.failed += counted.failed
        self.message_bytes += kind.message_bytes * counted.calls
        self.durations.extend(counted.durations)
        self.groups.add(kind.group_key)
        self.operations.add(kind.operation)
        if factor is not None and size:
            self.throughput.add(size * len(counted.durations), factor, sum(counted.durations))

    def add_split(self, row: KindRow, split: int, waits_ns: int, transfers_ns: int) -> None:
        """Add split calls of one row and kind: their number, their waits and their transfers."""
        self.split += split
        self.waited_ns += waits_ns
        self.transfer_ns += transfers_ns
        if row.factor is not None and row.size:
            self.transfers.add(row.size * split, row.factor, transfers_ns)

    def came_last(self, rank: int, late_ns: int) -> None:
        """Count an operation at which `rank` arrived last, `late_ns` after the second to last."""
        self.compared += 1
        self.lateness.setdefault(rank, array("q")).append(late_ns)


def union_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """Return the time that intervals (begin, end) cover, overlaps counted once."""
    return sum(end - begin for begin, end in joined(intervals))


def joined(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the intervals in order, merged where they overlap or touch, without empty intervals."""
    merged: list[tuple[int, int]] = []
    since = until = 0
    for begin, end in sorted(intervals):
        if begin >= end:
            continue
        if since == until or begin > until:
            if since != until:
                merged.append((since, until))
            since, until = begin, end
        elif end > until:
            until = end
    return [*merged, (since, until)] if since != until else merged


def percentile(ascending: array[int] | list[int], share: float) -> int:
    """Return a percentile by the nearest-rank method: always one of the values."""
    return ascending[max(math.ceil(share * len(ascending)) - 1, 0)]


def sorted_ns(values: Iterable[int]) -> array[int]:
    """Return the values in ascending order, in an array of eight-byte integers."""
    return array("q", sorted(values))
