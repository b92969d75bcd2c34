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
from otel_torchdist.analysis.statistics.grouping import Grouping, GroupingKey
from otel_torchdist.analysis.statistics.result import CallTotals, GroupCorrelation, Row
from otel_torchdist.analysis.statistics.tally import percentile, sorted_ns
from otel_torchdist.analysis.statistics.traffic import size_of
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.operations import StepMark
from otel_torchdist.show.report.columns import PathPiece, RankColumns, StepColumns
from otel_torchdist.show.report.document import Matrix
from otel_torchdist.sources.history.call_table import RankCalls

MAX_ROWS: Final = 300
"""Upper bound on the rows of the table of calls."""
MAX_PIECES: Final = 100
MAX_CAUSES: Final = 20
MAX_ENTRIES: Final = 400
"""Number of points that a chart of the usual width can show."""
MAX_MATRIX_ROWS: Final = 256
"""Upper bound on the rows of the matrix: a screen cannot separate more cells."""
_MIN_MATRIX_ROWS: Final = 16
_DETAILS: Final = (
    (GroupingKey.OPERATION, GroupingKey.GROUP, GroupingKey.SIZE, GroupingKey.SITE),
    (GroupingKey.OPERATION, GroupingKey.GROUP, GroupingKey.SIZE),
    (GroupingKey.OPERATION, GroupingKey.SIZE, GroupingKey.SITE),
    (GroupingKey.OPERATION, GroupingKey.SIZE),
)


def keys_for(ranks: Iterable[RankCalls]) -> tuple[GroupingKey, ...]:
    """Return the keys that distinguish rows: as many as fit into `MAX_ROWS` rows."""
    kinds = [(kind, size_of(kind), calls.rank) for calls in ranks for kind in calls.kinds]
    for keys in _DETAILS[:-1]:
        grouping = Grouping(keys)
        if len({grouping.key_of(*kind) for kind in kinds}) <= MAX_ROWS:
            return keys
    return _DETAILS[-1]


def calls_in(rows: Iterable[Row]) -> list[Row]:
    """Return all rows by decreasing time, without the numbers of each rank."""
    ordered = sorted(rows, key=lambda row: (-row.time_ns, -row.calls, row.operation or ""))
    return [msgspec.structs.replace(row, calls_by_rank={}, latecomers=row.latecomers[:1]) for row in ordered]


def ranks_in(totals: Sequence[CallTotals], steps: Mapping[int, RankSteps], hosts: Mapping[str, int]) -> RankColumns:
    """Convert the totals of all ranks to columns."""
    figures = [steps[rank.rank].figures() for rank in totals]
    return RankColumns(
        rank=tuple(rank.rank for rank in totals),
        host=tuple(hosts.get(rank.host or "", -1) for rank in totals),
        calls=tuple(rank.calls for rank in totals),
        open=tuple(rank.open for rank in totals),
        lost=tuple(rank.lost for rank in totals),
        bytes=tuple(rank.message_bytes for rank in totals),
        span_ns=tuple(rank.span_ns for rank in totals),
        communicating_ns=tuple(rank.communicating_ns for rank in totals),
        waiting_ns=tuple(rank.waiting_ns for rank in totals),
        compared=tuple(rank.compared for rank in totals),
        came_last=tuple(rank.came_last for rank in totals),
        steps=tuple(count for count, _, _ in figures),
        step_ns=tuple(median for _, median, _ in figures),
        step_p99_ns=tuple(p99 for _, _, p99 in figures),
    )


def skews_in(groups: Iterable[GroupCorrelation]) -> list[GroupCorrelation]:
    """Return groups of several ranks: groups with missing or mismatched calls first, then by decreasing skew."""
    several = [msgspec.structs.replace(group, unfinished=()) for group in groups if group.group.members > 1]
    return sorted(
        several,
        key=lambda group: (-group.mismatched, -group.incomplete, -(group.skew_p99_ns or 0), group.group.name),
    )


class RankSteps:
    """The steps of one rank with a known length.

    Attributes:
        steps: Step numbers, ascending.
        ended: End of each step, on the rank's own clock.
        lengths: Length of each step: the time since the end of the previous step, which must be known too.
    """

    __slots__ = ("ended", "lengths", "steps")

    def __init__(self, marks: Iterable[StepMark]) -> None:
        """Extract the steps from the marks of a rank."""
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
        """Return the number of steps, the median length, and the 99th percentile."""
        lengths = sorted_ns(self.lengths)
        if not lengths:
            return 0, None, None
        return len(lengths), percentile(lengths, 0.5), percentile(lengths, 0.99)


def steps_in(history: RankHistory) -> RankSteps:
    """Return the steps of a history."""
    return RankSteps(history.steps)


def step_columns(ranks: Mapping[int, RankSteps]) -> StepColumns | None:
    """Return the step times over all ranks; None if no length is known."""
    numbers = sorted({step for rank in ranks.values() for step in rank.steps})
    if not numbers:
        return None
    steps_per_entry = -(-(numbers[-1] - numbers[0] + 1) // MAX_ENTRIES)
    by_entry: dict[int, tuple[array[int], array[int]]] = {}
    for rank, rank_steps in ranks.items():
        for step, length in zip(rank_steps.steps, rank_steps.lengths, strict=True):
            lengths, ranks_of_lengths = by_entry.setdefault(
                (step - numbers[0]) // steps_per_entry, (array("q"), array("q"))
            )
            lengths.append(length)
            ranks_of_lengths.append(rank)
    entries = sorted(by_entry)
    ordered = [sorted_ns(by_entry[entry][0]) for entry in entries]
    return StepColumns(
        first=tuple(numbers[0] + entry * steps_per_entry for entry in entries),
        last=tuple(min(numbers[0] + (entry + 1) * steps_per_entry - 1, numbers[-1]) for entry in entries),
        least_ns=tuple(lengths[0] for lengths in ordered),
        median_ns=tuple(percentile(lengths, 0.5) for lengths in ordered),
        most_ns=tuple(lengths[-1] for lengths in ordered),
        slowest=tuple(_slowest(*by_entry[entry]) for entry in entries),
    )


def _slowest(lengths: array[int], ranks: array[int]) -> int:
    return ranks[lengths.index(max(lengths))]


def longest_of(path: CriticalPath) -> tuple[PathResult, int]:
    """Return the part of the path that a page shows, and the number of omitted pieces."""
    whole = path_result(path)
    pieces = [piece for piece in whole.pieces if piece.ns]
    shown = msgspec.structs.replace(
        whole,
        pieces=tuple(pieces[:MAX_PIECES]),
        ranks=tuple(msgspec.structs.replace(rank, waits_for=rank.waits_for[:1]) for rank in whole.ranks),
        causes=whole.causes[:MAX_CAUSES],
    )
    return shown, max(0, len(pieces) - MAX_PIECES)


def pieces_in(path: CriticalPath, offset_ns: int, from_ns: int, until_ns: int) -> Iterator[PathPiece]:
    """Yield the pieces of the path in a window of time.

    Args:
        path: The path.
        offset_ns: Offset from the path's times to nanoseconds since the epoch.
        from_ns: Start of the window, since the epoch.
        until_ns: End of the window.
    """
    for step in (*path.steps, *path.longest):
        for piece in step.pieces:
            begin_ns, end_ns = piece.begin_ns + offset_ns, piece.end_ns + offset_ns
            if end_ns > from_ns and begin_ns < until_ns:
                yield PathPiece(piece.rank, begin_ns - from_ns, end_ns - begin_ns)


def matrix_of(graph: Graph) -> Matrix | None:
    """Return the traffic between ranks; None if there is none."""
    if not graph.sent and not graph.unattributed_bytes:
        return None
    unit, names, row_of = _rows(graph)
    cells: Counter[tuple[int, int]] = Counter()
    for (source, destination), size in graph.sent.items():
        cells[row_of(source), row_of(destination)] += size
    hosts = graph.hosts
    between = sum(size for (source, to), size in graph.sent.items() if hosts.get(source, "") != hosts.get(to, ""))
    return Matrix(
        unit=unit,
        names=names,
        cells=tuple(number for (row, column), size in sorted(cells.items()) for number in (row, column, size)),
        between_hosts=between if len({*hosts.values()}) > 1 else None,
        total=sum(graph.sent.values()) + graph.unattributed_bytes,
        unattributed=graph.unattributed_bytes,
    )


def _rows(graph: Graph) -> tuple[str, tuple[str, ...], Callable[[int], int]]:
    """Return the unit of rows, their names, and a function from a rank to its row."""
    size = graph.world_size
    if size <= MAX_MATRIX_ROWS:
        return "rank", tuple(str(rank) for rank in range(size)), lambda rank: rank
    names = sorted({*graph.hosts.values()}, key=_first_ranks(graph).__getitem__)
    if 1 < len(names) <= MAX_MATRIX_ROWS and len(graph.hosts) == size:
        indices = {name: index for index, name in enumerate(names)}
        return "host", tuple(names), lambda rank: indices[graph.hosts[rank]]
    ranks_per_row = _ranks_per_row(graph)
    rows = tuple(f"{first}-{min(first + ranks_per_row, size) - 1}" for first in range(0, size, ranks_per_row))
    return "ranks", rows, lambda rank: rank // ranks_per_row


def _first_ranks(graph: Graph) -> dict[str, int]:
    first: dict[str, int] = {}
    for rank, host in graph.hosts.items():
        first[host] = min(rank, first.get(host, rank))
    return first


def _ranks_per_row(graph: Graph) -> int:
    """Return the number of neighboring ranks that share a row: whole groups of the innermost axes."""
    ranks_per_row = 1
    for axis in graph.axes:
        rows = -(-graph.world_size // ranks_per_row)
        if axis.stride == ranks_per_row and rows > MAX_MATRIX_ROWS and rows // axis.size >= _MIN_MATRIX_ROWS:
            ranks_per_row *= axis.size
    while -(-graph.world_size // ranks_per_row) > MAX_MATRIX_ROWS:
        ranks_per_row *= 2
    return ranks_per_row
