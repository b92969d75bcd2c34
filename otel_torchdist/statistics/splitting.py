"""Splits the time of calls into waiting for another rank and the transfer after its arrival.

Times of different clocks are never compared.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.history.call_kinds import TIMED
from otel_torchdist.history.call_table import RankCalls
from otel_torchdist.history.meetings import Meeting
from otel_torchdist.model.collectives import Waiting
from otel_torchdist.statistics.tally import Tally, union_ns
from otel_torchdist.statistics.traffic import bus_factor, size_of

DEFERRED_NS: Final = 1_000_000
"""If a thread begins to wait for a call so long after it was entered, and the last rank had arrived by then, the
transfer may have ended before the wait: nothing shows when."""


class Splitter:
    """Splits the calls of all channels, and finds out who arrived last.

    Attributes:
        came_last: By rank, at how many operations it arrived last.
        compared: By rank, at how many operations its arrival was compared with that of all others.
    """

    def __init__(self, ranks: Mapping[int, RankCalls], tallies: Mapping[int, Sequence[Tally]]) -> None:
        """Set up the sums.

        Args:
            ranks: All ranks.
            tallies: By rank and index of kind, what to add to; ranks whose calls are in no row are left out.
        """
        self._rows = {
            rank: [_Row(tally, size_of(kind), bus_factor(kind.operation, kind.members)) for kind, tally in of_kinds]
            for rank, of_kinds in ((rank, zip(ranks[rank].kinds, own, strict=True)) for rank, own in tallies.items())
        }
        self._waits: dict[int, _Waits] = defaultdict(_Waits)
        self.came_last: Final[defaultdict[int, int]] = defaultdict(int)
        self.compared: Final[defaultdict[int, int]] = defaultdict(int)

    def waiting_ns(self, rank: int) -> int | None:
        """Return the time in which a rank waited for another, each moment once; None if none of its calls was split."""
        return self._waits[rank].union_ns if rank in self._waits else None

    def add(self, meeting: Meeting) -> None:
        """Split the calls of one meeting, if all who take part are there and their arrivals are known."""
        arrived = meeting.arrived
        if arrived is None or meeting.waiting is Waiting.UNKNOWN:
            return
        if meeting.waiting is Waiting.EVERYONE:
            self._count_last(meeting)
        for member, place, arrived_ns, ready_ns in zip(
            meeting.members, meeting.places, arrived, meeting.awaited(), strict=True
        ):
            calls = member.calls
            ended_ns, watched_ns = calls.ended[place], calls.waited[place]
            if ready_ns is None or not calls.known[place] & TIMED:
                continue
            if watched_ns > ready_ns and watched_ns - arrived_ns > DEFERRED_NS:
                continue
            transfers_ns = ended_ns - (ready_ns if ready_ns > arrived_ns else arrived_ns)
            if transfers_ns < 0:  # it left before that rank came: a clock's resolution, or a damaged time
                transfers_ns = 0
            waits_ns = ended_ns - arrived_ns - transfers_ns
            waits = self._waits[calls.rank]  # it is there as soon as one call was split, even if none has waited
            if waits_ns:
                waits.add(arrived_ns, arrived_ns + waits_ns)
            rows = self._rows.get(calls.rank)
            if rows is not None:
                rows[calls.kind[place]].add(waits_ns, transfers_ns)

    def _count_last(self, meeting: Meeting) -> None:
        if len(meeting.members) < 2:
            return
        for member in meeting.members:
            self.compared[member.calls.rank] += 1
        last = meeting.last()
        if last is None or not last.late_ns:
            return
        calls = meeting.members[last.nth].calls
        self.came_last[calls.rank] += 1
        rows = self._rows.get(calls.rank)
        if rows is not None:
            rows[calls.kind[meeting.places[last.nth]]].tally.came_last(calls.rank, last.late_ns)


class _Waits:
    """The times in which one rank waited for others."""

    def __init__(self) -> None:
        self._begins, self._ends = array("q"), array("q")

    def add(self, begin_ns: int, end_ns: int) -> None:
        self._begins.append(begin_ns)
        self._ends.append(end_ns)

    @property
    def union_ns(self) -> int:
        return union_ns(zip(self._begins, self._ends, strict=True))


@dataclass(frozen=True, slots=True)
class _Row:
    """The tally of all calls of one rank and one kind, and the properties of these calls that it needs."""

    tally: Tally
    size: int | None
    factor: float | None

    def add(self, waits_ns: int, transfers_ns: int) -> None:
        tally = self.tally
        tally.split += 1
        tally.waited_ns += waits_ns
        tally.transfer_ns += transfers_ns
        if self.factor is not None and self.size:
            tally.transferred.add(self.size, self.factor, transfers_ns)
