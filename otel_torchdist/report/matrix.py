"""What moves between ranks; between hosts or sets of neighbouring ranks, where there are too many to show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from otel_torchdist.parallelism.graph import Graph
from otel_torchdist.report.model.report import Matrix

MOST_ROWS: Final = 256
"""More cells than a screen can show apart."""
LEAST_ROWS: Final = 16


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
    if size <= MOST_ROWS:
        return "rank", tuple(str(rank) for rank in range(size)), lambda rank: rank
    names = sorted({*found.hosts.values()}, key=_first_ranks(found).__getitem__)
    if 1 < len(names) <= MOST_ROWS and len(found.hosts) == size:
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
        if axis.stride == each and rows > MOST_ROWS and rows // axis.size >= LEAST_ROWS:
            each *= axis.size
    while -(-found.world_size // each) > MOST_ROWS:
        each *= 2
    return each
