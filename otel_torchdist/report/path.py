"""The critical path on a page: its pieces over a timeline, and the longest of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from otel_torchdist.critical_path.model import CriticalPath
from otel_torchdist.critical_path.result import PathResult, path_result
from otel_torchdist.report.model.windows import PathPiece

MOST_PIECES: Final = 100
MOST_CAUSES: Final = 20


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
