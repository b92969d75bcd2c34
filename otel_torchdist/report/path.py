"""The pieces of the critical path over a timeline."""

from __future__ import annotations

from collections.abc import Iterator

from otel_torchdist.critical_path.model import CriticalPath
from otel_torchdist.report.model.windows import PathPiece


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
