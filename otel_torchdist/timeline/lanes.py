"""Lanes: the slices of one never overlap, so that a track can show them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from otel_torchdist.timeline.model import OPEN


def lanes_of(places: Iterable[int], begin: Sequence[int], end: Sequence[int | None]) -> list[list[int]]:
    """Put each slice into the first lane that is free when it begins.

    Args:
        places: Which slices, by ascending begin.
        begin: When each of all slices begins.
        end: When each ends; `OPEN` or None if it has not.

    Returns:
        The places in each lane, in order.
    """
    lanes: list[list[int]] = []
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    for place in places:
        while busy and busy[0][0] <= begin[place]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, len(lanes))
            lanes.append([])
        lane = heapq.heappop(free)
        lanes[lane].append(place)
        end_ns = end[place]
        if end_ns is not None and end_ns != OPEN:  # a lane with an open slice is never free again
            heapq.heappush(busy, (end_ns, lane))
    return lanes
