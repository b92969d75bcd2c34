"""The figures of a report: calls, ranks, groups, steps, the path's pieces, and the traffic between ranks."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from otel_torchdist.analysis.critical_path.critical_path import CriticalPath
from otel_torchdist.analysis.critical_path.result import PathResult, path_result
from otel_torchdist.analysis.parallelism.graph import Graph
from otel_torchdist.analysis.statistics.grouping import Grouping, Part
from otel_torchdist.analysis.statistics.result import CallTotals, GroupCorrelation, Row
from otel_torchdist.analysis.statistics.tally import percentile, sorted_ns
from otel_torchdist.analysis.statistics.traffic import size_of
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.operations import StepMark
from otel_torchdist.show.report.columns import PathPiece, RankColumns, StepColumns
from otel_torchdist.show.report.document import Matrix
from otel_torchdist.sources.history.call_table import RankCalls

MOST_ROWS: Final = 300
"""Rows of the table of calls."""
MOST_PIECES: Final = 100
MOST_CAUSES: Final = 20
MOST_ENTRIES: Final = 400
"""Points that a chart of the usual width can show."""
MOST_MATRIX_ROWS: Final = 256
"""More cells than a screen can show apart."""
_LEAST_MATRIX_ROWS: Final = 16
_DETAILS: Final = (
    (Part.OPERATION, Part.GROUP, Part.SIZE, Part.SITE),
    (Part.OPERATION, Part.GROUP, Part.SIZE),
    (Part.OPERATION, Part.SIZE, Part.SITE),
    (Part.OPERATION, Part.SIZE),
)


def parts_for(ranks: Iterable[RankCalls]) -> tuple[Part, ...]:
    """What distinguishes rows, as finely as a table of `MOST_ROWS` rows can show: groups of thousands cannot."""
    kinds = [(kind, size_of(kind), one.rank) for one in ranks for kind in one.kinds]
    for parts in _DETAILS[:-1]:
        grouping = Grouping(parts)
        if len({grouping.key_of(*one) for one in kinds}) <= MOST_ROWS:
            return parts
    return _DETAILS[-1]


def calls_in(rows: Iterable[Row]) -> list[Row]:
    """All rows, most time first, without the numbers of each rank."""
    ordered = sorted(rows, key=lambda row: (-row.time_ns, -row.calls, row.operation or ""))
    return [msgspec.structs.replace(row, calls_by_rank={}, latecomers=row.latecomers[:1]) for row in ordered]


def ranks_in(totals: Sequence[CallTotals], steps: Mapping[int, RankSteps], hosts: Mapping[str, int]) -> RankColumns:
    """All ranks."""
    figures = [steps[one.rank].figures() for one in totals]
    return RankColumns(
        rank=tuple(one.rank for one in totals),
        host=tuple(hosts.get(one.host or "", -1) for one in totals),
        calls=tuple(one.calls for one in totals),
        open=tuple(one.open for one in totals),
        lost=tuple(one.lost for one in totals),
        bytes=tuple(one.message_bytes for one in totals),
        span_ns=tuple(one.span_ns for one in totals),
        communicating_ns=tuple(one.communicating_ns for one in totals),
        waiting_ns=tuple(one.waiting_ns for one in totals),
        compared=tuple(one.compared for one in totals),
        came_last=tuple(one.came_last for one in totals),
        steps=tuple(count for count, _, _ in figures),
        step_ns=tuple(median for _, median, _ in figures),
        step_p99_ns=tuple(p99 for _, _, p99 in figures),
    )


def skews_in(groups: Iterable[GroupCorrelation]) -> list[GroupCorrelation]:
    """All groups of several ranks: those in which something is missing, then the largest skew first."""
    found = [msgspec.structs.replace(group, unfinished=()) for group in groups if group.group.members > 1]
    return sorted(found, key=lambda one: (-one.mismatched, -one.incomplete, -(one.skew_p99_ns or 0), one.group.name))


class RankSteps:
    """The steps of one rank whose length is known.

    Attributes:
        steps: Their numbers, ascending.
        ended: When each ended, on the rank's own clock.
        lengths: How long each took: the time since the end of the one before, which must be known too.
    """

    __slots__ = ("ended", "lengths", "steps")

    def __init__(self, marks: Iterable[StepMark]) -> None:
        """Take what is needed from marks."""
        self.steps = array("q")
        self.ended = array("q")
        self.lengths = array("q")
        before: StepMark | None = None
        for mark in marks:
            if before is not None and mark.step == before.step + 1 and mark.ended_ns >= before.ended_ns:
                self.steps.append(mark.step)
                self.ended.append(mark.ended_ns)
                self.lengths.append(mark.ended_ns - before.ended_ns)
            before = mark

    def figures(self) -> tuple[int, int | None, int | None]:
        """How many there are, the median length, and the 99th percentile."""
        lengths = sorted_ns(self.lengths)
        if not lengths:
            return 0, None, None
        return len(lengths), percentile(lengths, 0.5), percentile(lengths, 0.99)


def steps_in(history: RankHistory) -> RankSteps:
    """The steps of a history."""
    return RankSteps(history.steps)


def steps_of(ranks: Mapping[int, RankSteps]) -> StepColumns | None:
    """How long each step took over all ranks; None if no length is known."""
    numbers = sorted({step for rank in ranks.values() for step in rank.steps})
    if not numbers:
        return None
    each = -(-(numbers[-1] - numbers[0] + 1) // MOST_ENTRIES)
    found: dict[int, tuple[array[int], array[int]]] = {}
    for rank, own in ranks.items():
        for step, length in zip(own.steps, own.lengths, strict=True):
            lengths, whose = found.setdefault((step - numbers[0]) // each, (array("q"), array("q")))
            lengths.append(length)
            whose.append(rank)
    entries = sorted(found)
    ordered = [sorted_ns(found[entry][0]) for entry in entries]
    return StepColumns(
        first=tuple(numbers[0] + entry * each for entry in entries),
        last=tuple(min(numbers[0] + (entry + 1) * each - 1, numbers[-1]) for entry in entries),
        least_ns=tuple(lengths[0] for lengths in ordered),
        median_ns=tuple(percentile(lengths, 0.5) for lengths in ordered),
        most_ns=tuple(lengths[-1] for lengths in ordered),
        slowest=tuple(_slowest(*found[entry]) for entry in entries),
    )


def _slowest(lengths: array[int], ranks: array[int]) -> int:
    return ranks[lengths.index(max(lengths))]


def longest_of(found: CriticalPath) -> tuple[PathResult, int]:
    """Return what a page shows of the path, and the number of its pieces that are left out."""
    whole = path_result(found)
    pieces = [piece for piece in whole.pieces if piece.ns]
    shown = msgspec.structs.replace(
        whole,
        pieces=tuple(pieces[:MOST_PIECES]),
        ranks=tuple(msgspec.structs.replace(one, waits_for=one.waits_for[:1]) for one in whole.ranks),
        causes=whole.causes[:MOST_CAUSES],
    )
    return shown, max(0, len(pieces) - MOST_PIECES)


def pieces_in(found: CriticalPath, offset_ns: int, from_ns: int, until_ns: int) -> Iterator[PathPiece]:
    """The pieces of the path in a window of time.

    Args:
        found: The path.
        offset_ns: Add it to the path's times for nanoseconds since the epoch.
        from_ns: When the window begins, since the epoch.
        until_ns: When it ends.
    """
    for step in (*found.steps, *found.longest):
        for piece in step.pieces:
            begin_ns, end_ns = piece.begin_ns + offset_ns, piece.end_ns + offset_ns
            if end_ns > from_ns and begin_ns < until_ns:
                yield PathPiece(piece.rank, begin_ns - from_ns, end_ns - begin_ns)


def matrix_of(found: Graph) -> Matrix | None:
    """Add up bytes; None if nothing moved."""
    if not found.sent and not found.unattributed_bytes:
        return None
    unit, names, row_of = _rows(found)
    cells: Counter[tuple[int, int]] = Counter()
    for (source, destination), size in found.sent.items():
        cells[row_of(source), row_of(destination)] += size
    hosts = found.hosts
    between = sum(size for (one, other), size in found.sent.items() if hosts.get(one, "") != hosts.get(other, ""))
    return Matrix(
        unit=unit,
        names=names,
        cells=tuple(number for (row, column), size in sorted(cells.items()) for number in (row, column, size)),
        between_hosts=between if len({*hosts.values()}) > 1 else None,
        total=sum(found.sent.values()) + found.unattributed_bytes,
        unattributed=found.unattributed_bytes,
    )


def _rows(found: Graph) -> tuple[str, tuple[str, ...], Callable[[int], int]]:
    """What rows stand for, their names, and the row of a rank."""
    size = found.world_size
    if size <= MOST_MATRIX_ROWS:
        return "rank", tuple(str(rank) for rank in range(size)), lambda rank: rank
    names = sorted({*found.hosts.values()}, key=_first_ranks(found).__getitem__)
    if 1 < len(names) <= MOST_MATRIX_ROWS and len(found.hosts) == size:
        places = {name: place for place, name in enumerate(names)}
        return "host", tuple(names), lambda rank: places[found.hosts[rank]]
    each = _ranks_a_row(found)
    rows = tuple(f"{first}-{min(first + each, size) - 1}" for first in range(0, size, each))
    return "ranks", rows, lambda rank: rank // each


def _first_ranks(found: Graph) -> dict[str, int]:
    first: dict[str, int] = {}
    for rank, host in found.hosts.items():
        first[host] = min(rank, first.get(host, rank))
    return first


def _ranks_a_row(found: Graph) -> int:
    """How many neighbouring ranks share a row: whole groups of the axes with the nearest neighbours."""
    each = 1
    for axis in found.axes:
        rows = -(-found.world_size // each)
        if axis.stride == each and rows > MOST_MATRIX_ROWS and rows // axis.size >= _LEAST_MATRIX_ROWS:
            each *= axis.size
    while -(-found.world_size // each) > MOST_MATRIX_ROWS:
        each *= 2
    return each
