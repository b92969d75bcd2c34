"""Reasons not to report a finding, or not yet."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from otel_torchdist.model.calls import OperationId
from otel_torchdist.model.snapshot import RankView, WorldSnapshot

# --- chance -----------------------------------------------------------------------------------------------------------
# Reasons why a late rank is not a straggler: chance, and the order of a pipeline's stages. Among few ranks, a
# rank often comes last by chance, and a few very late calls can dominate the mean.


TRIMMED: Final = 4
"""Number of each rank's largest latenesses that are left out of its usual lateness."""
MAX_CHANCE: Final = 1e-5
"""Maximum probability that a suspicion is due to chance. Low, because jobs run for thousands of hours, with a judgment
of each group every few seconds. A straggler must also be found twice in a row."""


class Latenesses:
    """Counts which rank came last in the calls of one group, and by how much.

    Attributes:
        calls: Number of calls.
        last: By rank, the number of calls in which it came last.
        late_ns: By rank, the time for which all others waited for it alone.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.last: Counter[int] = Counter()
        self.late_ns: Counter[int] = Counter()
        self._squares = 0.0
        self._largest: dict[int, list[int]] = {}

    def add(self, rank: int, late_ns: int) -> None:
        """Count a call in which `rank` came last, `late_ns` after the second-last rank."""
        self.calls += 1
        self.last[rank] += 1
        self.late_ns[rank] += late_ns
        self._squares += float(late_ns) ** 2
        largest = self._largest.setdefault(rank, [])
        if len(largest) < TRIMMED:
            heapq.heappush(largest, late_ns)
        else:
            heapq.heappushpop(largest, late_ns)

    def update(self, other: Latenesses) -> None:
        """Add the counts of another instance, of the same ranks."""
        self.calls += other.calls
        self.last.update(other.last)
        self.late_ns.update(other.late_ns)
        self._squares += other._squares
        for rank, largest in other._largest.items():
            self._largest[rank] = heapq.nlargest(TRIMMED, [*self._largest.get(rank, ()), *largest])
            heapq.heapify(self._largest[rank])

    @property
    def latest(self) -> tuple[int, int]:
        """The rank that the others waited for longest, and that time."""
        [(rank, late_ns)] = self.late_ns.most_common(1)
        return rank, late_ns

    def usual_ns(self, rank: int) -> int:
        """Return the total lateness of a rank without its largest latenesses."""
        return self.late_ns[rank] - sum(self._largest.get(rank, ()))

    def is_chance(self, rank: int) -> bool:
        """Return whether a rank no slower than another could come last this often and this late.

        Such a rank would come last in at most half of the calls, whatever the lateness in each call. So the sum of its
        latenesses is a sum of independent terms of known size. Bernstein's inequality bounds its probability, even if a
        few calls make up most of the sum. The share is one half, not one over the number of ranks, because two
        ranks may be equally slow and all others faster.

        The few largest latenesses of any rank are reduced to the smallest of them. Otherwise one long break of another
        rank would hide a rank that is always late. This limit does not depend on which rank came last, so the bound
        still holds.
        """
        largest = [(value, last) for last, values in self._largest.items() for value in values]
        limit, _ = min(heapq.nlargest(TRIMMED, largest), default=(0, rank))
        outliers = [(value, last) for value, last in largest if value > limit]
        above: Counter[int] = Counter()
        for value, last in outliers:
            above[last] += value - limit
        squares = self._squares - sum(float(value) ** 2 - float(limit) ** 2 for value, _ in outliers)
        total_ns = sum(self.late_ns.values()) - above.total()
        excess_ns = self.late_ns[rank] - above[rank] - total_ns / 2
        if excess_ns <= 0:
            return True
        return excess_ns**2 / (2 * (squares / 4 + excess_ns * limit / 3)) < -math.log(MAX_CHANCE)


def sent_between(views: Iterable[RankView]) -> Counter[tuple[int, int]]:
    """Return the number of messages sent between ranks, by sender and receiver."""
    shown = {view.rank: view for view in views}
    messages: Counter[tuple[int, int]] = Counter()
    for rank, view in shown.items():
        for channel, progress in view.progress.items():
            if channel.is_point_to_point and channel.source == rank and channel.destination in shown:
                messages[channel.source, channel.destination] += progress.entered
    return messages


def exchanging(sent: Mapping[tuple[int, int], int], steps: int) -> list[tuple[int, int]]:
    """Return the pairs of sender and receiver that exchange messages in most steps, like stages of a pipeline.

    Ranks that only occasionally send each other a batch or a metric are no stages.

    Args:
        sent: Number of messages in these steps, by sender and receiver.
        steps: Number of steps; 0 if the program has none, so that any message counts.
    """
    return [pair for pair, messages in sent.items() if 2 * messages >= max(steps, 1)]


def is_pipeline(pairs: Collection[tuple[int, int]]) -> bool:
    """Return whether ranks that exchange messages have distinct positions, such as a first and a last stage.

    In a ring, each rank sends to one rank and receives from one rank, so no position is later than another.
    """
    senders, receivers = Counter(sender for sender, _ in pairs), Counter(receiver for _, receiver in pairs)
    is_ring = senders == receivers and set(senders.values()) <= {1} and len(pairs) > 2
    return bool(pairs) and not is_ring


# --- patience ---------------------------------------------------------------------------------------------------------
# Limits the time for which a finder waits for ranks with missing data about an operation.


SETTLED_NS: Final = 5_000_000_000
"""Time in ns to wait for members that have not entered an operation, not ended its step, or have no result of it."""


class Patience:
    """Remembers when a finder first waited for an operation's missing data."""

    def __init__(self) -> None:
        self._since_ns: dict[OperationId, int] = {}

    def is_over(self, world: WorldSnapshot, operation_id: OperationId) -> bool:
        """Return whether the finder has waited for an operation's missing data for `SETTLED_NS`."""
        return world.taken_ns - self._since_ns.setdefault(operation_id, world.taken_ns) >= SETTLED_NS

    def forget(self, operation_id: OperationId) -> None:
        """Forget an operation that has been reported."""
        self._since_ns.pop(operation_id, None)
