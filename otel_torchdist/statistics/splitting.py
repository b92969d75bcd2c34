"""Splits the time of calls into waiting for another rank and the transfer after its arrival.

Times of different clocks are never compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.collectives import RECV, Waiting, waiting_in
from otel_torchdist.statistics.calls import UNKNOWN, RankCalls
from otel_torchdist.statistics.grouping import CallKind
from otel_torchdist.statistics.intervals import union_ns
from otel_torchdist.statistics.meetings import Meeting, SharedChannel
from otel_torchdist.statistics.tally import Tally
from otel_torchdist.statistics.traffic import bus_factor

DEFERRED_NS: Final = 1_000_000
"""If a thread begins to wait for a call so long after it was entered, and the last rank had arrived by then, the
transfer may have ended before the wait: nothing shows when."""


class Splitter:
    """Splits the calls of all channels, and finds out who arrived last.

    Attributes:
        came_last: By rank, at how many operations it arrived last.
        compared: By rank, at how many operations its arrival was compared with that of all others.
    """

    def __init__(self, ranks: Iterable[RankCalls], tallies: Mapping[int, Sequence[Tally | None]]) -> None:
        """Set up the sums.

        Args:
            ranks: All ranks.
            tallies: By rank and index of kind, what to add to; None for calls that are in no row.
        """
        self._rows = {
            rank.rank: [_row_of(kind, tally) for kind, tally in zip(rank.kinds, tallies[rank.rank], strict=True)]
            for rank in ranks
        }
        self._waits: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        self.came_last: defaultdict[int, int] = defaultdict(int)
        self.compared: defaultdict[int, int] = defaultdict(int)

    def waiting_ns(self, rank: int) -> int | None:
        """Return the time in which a rank waited for another, each moment once; None if none of its calls was split."""
        return union_ns(self._waits[rank]) if rank in self._waits else None

    def add(self, shared: SharedChannel, meeting: Meeting) -> None:
        """Split the calls of one meeting, if all who take part are there and their arrivals are known."""
        if not shared.has_one_clock or meeting.missing:
            return
        arrived = [member.calls.arrived[place] for member, place in meeting.calls]
        if UNKNOWN in arrived:
            return
        waiting = self._waiting_in(meeting)
        if waiting is Waiting.UNKNOWN:
            return
        if waiting is Waiting.EVERYONE:
            self._count_last(meeting, arrived)
        ready = awaited_arrivals(meeting, waiting, arrived)
        for (member, place), arrived_ns, ready_ns in zip(meeting.calls, arrived, ready, strict=True):
            calls = member.calls
            ended_ns, watched_ns = calls.ended[place], calls.watched[place]
            if ready_ns is None or ended_ns < 0:
                continue
            if watched_ns > ready_ns and watched_ns - arrived_ns > DEFERRED_NS:
                continue
            transfers_ns = ended_ns - (ready_ns if ready_ns > arrived_ns else arrived_ns)
            if transfers_ns < 0:  # it left before that rank came: a clock's resolution, or a damaged time
                transfers_ns = 0
            waits_ns = ended_ns - arrived_ns - transfers_ns
            rank = member.rank.rank
            waits = self._waits[rank]  # it is there as soon as one call was split, even if none has waited
            if waits_ns:
                waits.append((arrived_ns, arrived_ns + waits_ns))
            row = self._rows[rank][calls.kinds[place]]
            if row.tally is not None:
                row.tally.split += 1
                row.tally.waited_ns += waits_ns
                row.tally.transfer_ns += transfers_ns
                if row.factor is not None and row.size:
                    row.tally.transferred.add(row.size, row.factor, transfers_ns)

    def _waiting_in(self, meeting: Meeting) -> Waiting:
        """Which rank waits for which; nothing is known about members that called different operations."""
        rows = self._rows
        found = {rows[member.rank.rank][member.calls.kinds[place]].waiting for member, place in meeting.calls}
        return found.pop() if len(found) == 1 else Waiting.UNKNOWN

    def _count_last(self, meeting: Meeting, arrived: Sequence[int]) -> None:
        if len(arrived) < 2:
            return
        for member, _ in meeting.calls:
            self.compared[member.rank.rank] += 1
        before_ns, last_ns = sorted(arrived)[-2:]
        if last_ns == before_ns:
            return
        member, place = meeting.calls[arrived.index(last_ns)]
        self.came_last[member.rank.rank] += 1
        tally = self._rows[member.rank.rank][member.calls.kinds[place]].tally
        if tally is not None:
            tally.came_last(member.rank.rank, last_ns - before_ns)


@dataclass(frozen=True, slots=True)
class _Row:
    """What is the same for all calls of one rank and one kind."""

    tally: Tally | None
    waiting: Waiting
    size: int | None
    factor: float | None


def _row_of(kind: CallKind, tally: Tally | None) -> _Row:
    return _Row(tally, waiting_in(kind.operation), kind.size, bus_factor(kind.operation, kind.members))


def waiting_at(meeting: Meeting) -> Waiting:
    """Which rank waits for which; nothing is known about members that called different operations."""
    found = {waiting_in(member.kind(place).operation) for member, place in meeting.calls}
    return found.pop() if len(found) == 1 else Waiting.UNKNOWN


def awaited_arrivals(meeting: Meeting, waiting: Waiting, arrived: Sequence[int]) -> list[int | None]:
    """For each rank when the one arrived for which it waits; None if it waits for none."""
    last_ns = max(arrived)
    if waiting is Waiting.EVERYONE:
        return [last_ns] * len(arrived)
    kinds = [member.kind(place) for member, place in meeting.calls]
    if waiting is Waiting.RECEIVER:
        return [last_ns if kind.operation == RECV else None for kind in kinds]
    roots = [member.rank.rank == kind.root for (member, _), kind in zip(meeting.calls, kinds, strict=True)]
    if True not in roots:
        return [None] * len(arrived)
    if waiting is Waiting.ROOT:
        return [last_ns if is_root else None for is_root in roots]
    if waiting is Waiting.FOR_ROOT:
        root_ns = arrived[roots.index(True)]
        return [None if is_root else root_ns for is_root in roots]
    return [None] * len(arrived)
