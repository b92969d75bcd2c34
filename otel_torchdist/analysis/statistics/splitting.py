"""Splits the duration of calls into the wait for the last rank and the transfer after its arrival.

Times on different clocks are never compared.
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
"""Longest delay between the entry of a call and the wait for it. If the wait begins later than that, and after the last
arrival, the call is not split: the transfer may have ended before the wait, at an unknown time."""


class Splitter:
    """Splits the calls of all channels, and counts the last arrivals.

    Attributes:
        came_last: Number of operations at which each rank arrived last.
        compared: Number of operations at which each rank's arrival was compared with all others.
    """

    def __init__(self, ranks: Iterable[int], rows: Mapping[int, Sequence[KindRow]]) -> None:
        """Start with empty sums.

        Args:
            ranks: All ranks.
            rows: The rows to add to, by rank and index of kind. Ranks whose calls are in no row are missing.
        """
        self._ranks = {rank: _RankSums(rows.get(rank)) for rank in ranks}
        self.came_last: Final[defaultdict[int, int]] = defaultdict(int)
        self.compared: Final[defaultdict[int, int]] = defaultdict(int)

    def waiting_ns(self, rank: int) -> int | None:
        """Return the time in which a rank waited for others, overlaps counted once; None if no call was split."""
        sums = self._ranks[rank]
        return union_ns(zip(sums.begins, sums.ends, strict=True)) if sums.by_kind else None

    def finish(self) -> None:
        """Add the sums to the rows."""
        for sums in self._ranks.values():
            for kind, (split, waits_ns, transfers_ns) in sums.by_kind.items():
                if sums.rows is not None:
                    sums.rows[kind].tally.add_split(sums.rows[kind], split, waits_ns, transfers_ns)

    def add(self, meeting: Meeting) -> None:
        """Split the calls at one position of a channel, if the arrivals of all participants are known."""
        arrived = meeting.arrived
        if arrived is None or meeting.waiting is Waiting.UNKNOWN:
            return
        if meeting.waiting is Waiting.EVERYONE:
            self._count_last(meeting)
        ranks = self._ranks
        for member, index, arrived_ns, ready_ns in zip(
            meeting.members, meeting.indices, arrived, meeting.awaited(), strict=True
        ):
            calls = member.calls
            if ready_ns is None or not calls.known_times[index] & TIMED:
                continue
            ended_ns, watched_ns = calls.ended[index], calls.wait_entered[index]
            if watched_ns > ready_ns and watched_ns - arrived_ns > DEFERRED_NS:
                continue
            transfers_ns = ended_ns - (ready_ns if ready_ns > arrived_ns else arrived_ns)
            if transfers_ns < 0:  # the call ended before the last arrival: clock resolution, or a damaged time
                transfers_ns = 0
            waits_ns = ended_ns - arrived_ns - transfers_ns
            sums = ranks[calls.rank]
            if waits_ns:
                sums.begins.append(arrived_ns)
                sums.ends.append(arrived_ns + waits_ns)
            of_kind = sums.by_kind[calls.kind[index]]
            of_kind[0] += 1
            of_kind[1] += waits_ns
            of_kind[2] += transfers_ns

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
            rows[calls.kind[meeting.indices[last.nth]]].tally.came_last(calls.rank, last.late_ns)


class _RankSums:
    """The split calls of one rank.

    Attributes:
        rows: The rows to add to, by index of kind; None if the rank's calls are in no row.
        begins: Start times of the waits for others.
        ends: End times of these waits.
        by_kind: Number of calls, nanoseconds of waits and nanoseconds of transfers, by index of kind.
    """

    __slots__ = ("begins", "by_kind", "ends", "rows")

    def __init__(self, rows: Sequence[KindRow] | None) -> None:
        self.rows: Final = rows
        self.begins, self.ends = array("q"), array("q")
        self.by_kind: Final[defaultdict[int, list[int]]] = defaultdict(lambda: [0, 0, 0])
