"""The last minute: each operation of a few ranks, and for many ranks the share of communication in each second."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from otel_torchdist.analysis.statistics.tally import joined
from otel_torchdist.model.collectives import family_of
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.show.live.live_snapshot import Bar, Sample
from otel_torchdist.show.live.texts import shown

SECONDS: Final = 60
UNIT_NS: Final = 10_000
"""Unit of the times of bars, 10 µs."""
MAX_LANES: Final = 16
"""Upper bound on the ranks whose operations are shown."""
MAX_OPEN: Final = 64
"""Upper bound on the operations in flight shown of one rank, oldest first."""
UNKNOWN: Final = "."
OPEN: Final = -1
_DIGITS: Final = "0123456789"
_SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LiveLane:
    """The operations of one rank.

    Attributes:
        rank: The rank.
        since: Start of its first bar, in units of 10 µs before now.
        bars: For each bar, ordered by start: the distance from the start of the previous bar, the length (-1 if open),
            both in these units, and the index in `names`. Small numbers compress well.
    """

    rank: int
    since: int
    bars: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Strip:
    """The share of communication in each of the last seconds of a rank.

    Attributes:
        rank: The rank.
        cells: A digit for each second, the oldest first: 0 for none to 9 for all of it, or `.` if unknown.
    """

    rank: int
    cells: str


@dataclass(frozen=True, slots=True)
class LiveTimeline:
    """The last minute.

    Attributes:
        names: Operation, group and family of the bars. The family is the basic collective, such as `all_gather`.
        lanes: Ranks whose operations are shown.
        strips: All ranks.
    """

    names: tuple[tuple[str, str, str], ...]
    lanes: tuple[LiveLane, ...]
    strips: tuple[Strip, ...]


def timeline_of(
    world: WorldSnapshot,
    chosen: Sequence[int],
    bars: Mapping[int, Sequence[Bar]],
    samples: Mapping[int, Sequence[Sample]],
    groups: Mapping[str, str],
    now_ns: int,
) -> LiveTimeline:
    """Describe the last minute of a run.

    Args:
        world: The ranks.
        chosen: Ranks that should have a lane, the most important first.
        bars: Newest ended operations, oldest first, by nonce.
        samples: Samples of the last minute, oldest first, by nonce.
        groups: Names of groups, by key.
        now_ns: Monotonic time.
    """
    shown_ranks = [rank for rank in dict.fromkeys(chosen) if rank in world.ranks][:MAX_LANES]
    names = _Names(groups)
    lanes = tuple(
        _lane(world.ranks[rank], bars.get(world.ranks[rank].nonce, ()), names, now_ns) for rank in sorted(shown_ranks)
    )
    strips = tuple(
        Strip(view.rank, _cells(view, bars.get(view.nonce, ()), samples.get(view.nonce, ()), now_ns))
        for view in world.in_order
    )
    return LiveTimeline(tuple(names.listed), lanes, strips)


class _Names:
    """A list of distinct names of bars."""

    def __init__(self, groups: Mapping[str, str]) -> None:
        self._groups = groups
        self._indices: dict[tuple[str, str], int] = {}
        self.listed: list[tuple[str, str, str]] = []

    def index_of(self, name: str, group: str) -> int:
        key = name, group
        if key not in self._indices:
            self._indices[key] = len(self.listed)
            self.listed.append((shown(name), self._groups.get(group, ""), shown(family_of(name))))
        return self._indices[key]


def _lane(view: RankView, ended: Sequence[Bar], names: _Names, now_ns: int) -> LiveLane:
    oldest_ns = now_ns - SECONDS * _SECOND_NS
    bars = [
        (bar.begin_ns // UNIT_NS, max(bar.end_ns - bar.begin_ns, 0) // UNIT_NS, names.index_of(bar.name, bar.group))
        for bar in ended
        if bar.end_ns >= oldest_ns
    ]
    for operation in view.open[:MAX_OPEN]:
        if operation.waiting_since_ns is not None and not view.is_over:
            index = names.index_of(operation.name, operation.operation_id.channel.group)
            bars.append((operation.waiting_since_ns // UNIT_NS, OPEN, index))
    bars.sort()
    starts = [start for start, _, _ in bars]
    since = now_ns // UNIT_NS - starts[0] if starts else 0
    distances = [0, *(after - before for before, after in pairwise(starts))]
    return LiveLane(view.rank, since, tuple((gap, *bar[1:]) for gap, bar in zip(distances, bars, strict=False)))


def _cells(view: RankView, ended: Sequence[Bar], samples: Sequence[Sample], now_ns: int) -> str:
    """Return the cells of a rank: from its counters, and from its operations before the first sample."""
    begin_ns = now_ns - SECONDS * _SECOND_NS
    cells = [UNKNOWN] * SECONDS
    sampled_from = samples[0].at_ns if samples else now_ns
    if sampled_from > begin_ns:
        _fill_from_operations(cells, view, ended, sampled_from, begin_ns)
    # Runs 60 times for each rank. Calls of min, max and round would take most of the time.
    for before, after in pairwise(samples):
        length_ns = after.at_ns - before.at_ns or 1
        busy = (9 * (after.communicating_ns - before.communicating_ns) + length_ns // 2) // length_ns
        first, last = (before.at_ns - begin_ns) // _SECOND_NS, (after.at_ns - begin_ns) // _SECOND_NS
        for second in range(first, last if last > first else first + 1):
            if 0 <= second < SECONDS:
                cells[second] = _DIGITS[busy if busy < 9 else 9]
    if samples and cells[-1] == UNKNOWN:  # less than a second has passed since the last sample
        cells[-1] = cells[-2]
    return "".join(cells)


def _fill_from_operations(cells: list[str], view: RankView, ended: Sequence[Bar], until_ns: int, begin_ns: int) -> None:
    """Fill the cells before the first sample, back to the oldest known operation."""
    waits_ns = (operation.waiting_since_ns for operation in view.open if operation.waiting_since_ns)
    open_ns = min(waits_ns, default=until_ns)
    known_ns = min(ended[0].begin_ns if ended else until_ns, open_ns)
    intervals = [(bar.begin_ns, min(bar.end_ns, until_ns)) for bar in ended if bar.begin_ns < until_ns]
    busy_ns = [0] * SECONDS
    for interval in joined([*intervals, (open_ns, until_ns)]):
        for second, part_ns in _seconds(*interval, begin_ns):
            busy_ns[second] += part_ns
    for second, part_ns in _seconds(known_ns, until_ns, begin_ns):
        if part_ns > _SECOND_NS // 4:
            cells[second] = _DIGITS[min(round(9 * busy_ns[second] / part_ns), 9)]


def _seconds(from_ns: int, until_ns: int, begin_ns: int) -> Iterable[tuple[int, int]]:
    """Split an interval at seconds after `begin_ns`. Yields the index of each second and the part inside it, in ns."""
    at_ns = max(from_ns, begin_ns)
    until_ns = min(until_ns, begin_ns + SECONDS * _SECOND_NS)
    while at_ns < until_ns:
        second = (at_ns - begin_ns) // _SECOND_NS
        next_ns = min(begin_ns + (second + 1) * _SECOND_NS, until_ns)
        yield second, next_ns - at_ns
        at_ns = next_ns
