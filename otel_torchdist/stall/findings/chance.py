"""What makes a late rank no straggler: chance, and the order of a pipeline's stages.

With few ranks one comes last often by chance alone, and where few calls are very late they carry the mean.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from otel_torchdist.world.model import RankView

LARGEST: Final = 4
"""So many of each rank's largest latenesses are left out where the question is what is usual."""
BY_CHANCE: Final = 1e-5
"""The most likely that a suspicion may be to come from chance. Jobs are compared for thousands of hours, each group of
each of them every few seconds, and a straggler must be found twice in a row."""


class Latenesses:
    """Counts who came last in the calls of one group, and by how much.

    Attributes:
        calls: How many.
        last: By rank, in how many it came last.
        late_ns: By rank, for how long the others waited for it alone.
    """

    def __init__(self) -> None:
        """Nothing has been counted."""
        self.calls = 0
        self.last: Counter[int] = Counter()
        self.late_ns: Counter[int] = Counter()
        self._squares = 0.0
        self._largest: dict[int, list[int]] = {}

    def add(self, rank: int, late_ns: int) -> None:
        """Count a call for which `rank` came last, so much later than the last but one."""
        self.calls += 1
        self.last[rank] += 1
        self.late_ns[rank] += late_ns
        self._squares += float(late_ns) ** 2
        largest = self._largest.setdefault(rank, [])
        if len(largest) < LARGEST:
            heapq.heappush(largest, late_ns)
        else:
            heapq.heappushpop(largest, late_ns)

    def update(self, other: Latenesses) -> None:
        """Count what another one has counted of the same ranks."""
        self.calls += other.calls
        self.last.update(other.last)
        self.late_ns.update(other.late_ns)
        self._squares += other._squares
        for rank, largest in other._largest.items():
            self._largest[rank] = heapq.nlargest(LARGEST, [*self._largest.get(rank, ()), *largest])
            heapq.heapify(self._largest[rank])

    @property
    def latest(self) -> tuple[int, int]:
        """The rank that the others waited for most, and for how long."""
        [(rank, late_ns)] = self.late_ns.most_common(1)
        return rank, late_ns

    def usual_ns(self, rank: int) -> int:
        """How late a rank was in all, without its largest latenesses."""
        return self.late_ns[rank] - sum(self._largest.get(rank, ()))

    def is_chance(self, rank: int) -> bool:
        """Whether a rank that is no slower than another one could be late so often and so much.

        Then it would be the last one in half of the calls at most, however late the last one is. So the sum of its
        latenesses is one of independent terms of known size, for which Bernstein's inequality bounds the chance, also
        where a few calls make up most of it. Half, and not one of so many ranks: some may be slower than the others
        and like each other.
        """
        largest_ns = float(max((value for one in self._largest.values() for value in one), default=0))
        excess_ns = self.late_ns[rank] - sum(self.late_ns.values()) / 2
        if excess_ns <= 0:
            return True
        return excess_ns**2 / (2 * (self._squares / 4 + excess_ns * largest_ns / 3)) < -math.log(BY_CHANCE)


def sent_between(views: Iterable[RankView]) -> Counter[tuple[int, int]]:
    """How often ranks have sent to each other, by sender and receiver."""
    shown = {view.rank: view for view in views}
    found: Counter[tuple[int, int]] = Counter()
    for rank, view in shown.items():
        for channel, progress in view.progress.items():
            if channel.is_point_to_point and channel.source == rank and channel.destination in shown:
                found[channel.source, channel.destination] += progress.entered
    return found


def is_pipeline(pairs: Collection[tuple[int, int]]) -> bool:
    """Whether ranks that send to each other have places that differ: ends, or directions that cross.

    In a ring each rank sends to one and receives from one, so no place in it is later than another.
    """
    senders, receivers = Counter(one for one, _ in pairs), Counter(other for _, other in pairs)
    is_ring = senders == receivers and set(senders.values()) <= {1} and len(pairs) > 2
    return bool(pairs) and not is_ring
