"""Splits the time of calls into waiting for another rank and the transfer after its arrival.

Times of different clocks are never compared.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from otel_torchdist.analysis.statistics.tally import KindRow, union_ns
from otel_torchdist.model.collectives import Waiting
from otel_torchdist.sources.history.call_kinds import TIMED
from otel_torchdist.sources.history.meetings import Meeting

DEFERRED_NS: Final = 1_000_000
"""If a thread begins to wait for a call so long after it was entered, and the last rank had arrived by then, the
transfer may have ended before the wait: nothing shows when."""


class Splitter:
    """Splits the calls of all channels, and finds out who arrived last.

    Attributes:
        came_last: By rank, at how many operations it arrived last.
        compared: By rank, at how many operations its arrival was compared with that of all others.
    """

    def __init__(self, ranks: Iterable[int], rows: Mapping[int, Sequence[KindRow]]) -> None:
        """Set up the sums.

        Args:
            ranks: All ranks.
            rows: By rank and index of kind, what to add to; ranks whose calls are in no row are left out.
        """
        self._ranks = {rank: _RankSums(rows.get(rank)) for rank in ranks}
        self.came_last: Final[defaultdict[int, int]] = defaultdict(int)
        self.compared: Final[defaultdict[int, int]] = defaultdict(int)

    def waiting_ns(self, rank: int) -> int | None:
        """Return the time in which a rank waited for another, each moment once; None if none of its calls was split."""
        own = self._ranks[rank]
        return union_ns(zip(own.begins, own.ends, strict=True)) if own.sums else None

    def finish(self) -> None:
        """Add the calls of all meetings to their rows."""
        for own in self._ranks.values():
            for kind, (split, waits_ns, transfers_ns) in own.sums.items():
                if own.rows is not None:
                    own.rows[kind].tally.add_split(own.rows[kind], split, waits_ns, transfers_ns)

    def add(self, meeting: Meeting) -> None:
        """Split the calls of one meeting, if all who take part are there and their arrivals are known."""
        arrived = meeting.arrived
        if arrived is None or meeting.waiting is Waiting.UNKNOWN:
            return
        if meeting.waiting is Waiting.EVERYONE:
            self._count_last(meeting)
        ranks = self._ranks
        for member, place, arrived_ns, ready_ns in zip(
            meeting.members, meeting.places, arrived, meeting.awaited(), strict=True
        ):
            calls = member.calls
            if ready_ns is None or not calls.known[place] & TIMED:
                continue
            ended_ns, watched_ns = calls.ended[place], calls.waited[place]
            if watched_ns > ready_ns and watched_ns - arrived_ns > DEFERRED_NS:
                continue
            transfers_ns = ended_ns - (ready_ns if ready_ns > arrived_ns else arrived_ns)
            if transfers_ns < 0:  # it left before that rank came: a clock's resolution, or a damaged time
                transfers_ns = 0
            waits_ns = ended_ns - arrived_ns - transfers_ns
            own = ranks[calls.rank]
            if waits_ns:
                own.begins.append(arrived_ns)
                own.ends.append(arrived_ns + waits_ns)
            sums = own.sums[calls.kind[place]]
            sums[0] += 1
            sums[1] += waits_ns
            sums[2] += transfers_ns

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
        rows = self._ranks[calls.rank].rows
        if rows is not None:
            rows[calls.kind[meeting.places[last.nth]]].tally.came_last(calls.rank, last.late_ns)


class _RankSums:
    """The calls of one rank that were split.

    Attributes:
        rows: By index of kind, what to add to; None if its calls are in no row.
        begins: When it began to wait for others.
        ends: When each of these waits was over.
        sums: By index of kind, the number of calls, the time for which they waited, and that of their transfers.
    """

    __slots__ = ("begins", "ends", "rows", "sums")

    def __init__(self, rows: Sequence[KindRow] | None) -> None:
        self.rows: Final = rows
        self.begins, self.ends = array("q"), array("q")
        self.sums: Final[defaultdict[int, list[int]]] = defaultdict(lambda: [0, 0, 0])
