"""Cuts a segment with more rows than one can hold: a ring that was read at once may have a million."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from operator import attrgetter

from otel_torchdist.archive.heads import MAX_ROWS
from otel_torchdist.archive.model import Archived, Segment


def parts_of(segment: Segment, before: Archived, most_rows: int = MAX_ROWS) -> Iterator[Segment]:
    """Yield segments of a bounded number of rows in each table; only the last one says what is archived then.

    Args:
        segment: The segment; its operations may be in any order.
        before: What was archived before it.
        most_rows: Rows that a table of a segment may have.
    """
    ended = sorted(segment.ended, key=attrgetter("number"))
    over = [activity for activity in segment.activities if not activity.is_open]
    rows, first = max(len(ended), len(segment.steps), len(segment.activities)), 0
    moment = dataclasses.replace(segment.moment, through=before.through)
    while rows - first > most_rows:
        after = first + most_rows
        yield Segment(
            segment.origin, moment, before.operations, ended[first:after], (), segment.steps[first:after],
            over[first:after],
        )  # fmt: skip
        first = after
    rest = [*over[first:], *(activity for activity in segment.activities if activity.is_open)]
    yield dataclasses.replace(
        segment,
        archived=before.operations + len(ended),
        ended=ended[first:],
        steps=segment.steps[first:],
        activities=rest if first else segment.activities,
    )
