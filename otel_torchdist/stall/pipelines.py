"""Which ranks hand something on to each other, as the stages of a pipeline do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from otel_torchdist.stall.world import RankView


def sent_between(views: Iterable[RankView]) -> Counter[tuple[int, int]]:
    """How often ranks have sent to each other, by sender and receiver."""
    shown = {view.rank: view for view in views}
    found: Counter[tuple[int, int]] = Counter()
    for rank, view in shown.items():
        for lane, progress in view.progress.items():
            if lane.is_point_to_point and lane.source == rank and lane.destination in shown:
                found[lane.source, lane.destination] += progress.entered
    return found


def is_pipeline(pairs: Collection[tuple[int, int]]) -> bool:
    """Whether ranks that send to each other have places that differ: ends, or directions that cross.

    In a ring each rank sends to one and receives from one, so no place in it is later than another.
    """
    senders, receivers = Counter(one for one, _ in pairs), Counter(other for _, other in pairs)
    is_ring = senders == receivers and set(senders.values()) <= {1} and len(pairs) > 2
    return bool(pairs) and not is_ring
