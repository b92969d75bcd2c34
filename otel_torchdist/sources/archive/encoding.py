"""Encodes segments, and splits a segment with too many rows."""

from __future__ import annotations

import dataclasses
import json
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any, Final

from otel_torchdist.model.history import Activity
from otel_torchdist.model.names import unpack_label
from otel_torchdist.model.operations import Operation, Splits
from otel_torchdist.sources.archive.columns import pack
from otel_torchdist.sources.archive.format import (
    ACTIVITY_COLUMNS,
    MAX_ROWS,
    OPERATION_COLUMNS,
    PLAN,
    SECTION_SIZES,
    STEP_COLUMNS,
    SegmentDocument,
    encode_head,
)
from otel_torchdist.sources.archive.segment import Archived, Segment
from otel_torchdist.sources.archive.tables import (
    names_of,
    pack_sparse_fields,
    pack_splits,
    splits_of,
    with_calls,
    with_sparse_fields,
)
from otel_torchdist.tape.names.reader import Names
from otel_torchdist.tape.names.writer import encode_line

_LEVEL: Final = 5
"""Level 6 takes almost twice the time for less than 1 % of the size."""
_TIME_COLUMNS: Final = OPERATION_COLUMNS[8:]
_GROWING: Final = frozenset({"number", "entered_ns", "ended_ns", "step", "sequence"})
_plan_of: Final = attrgetter(*PLAN)


def parts_of(segment: Segment, before: Archived, max_rows: int = MAX_ROWS) -> Iterator[Segment]:
    """Split a segment into parts with a bounded number of rows. Only the last part advances `first_unread`.

    Args:
        segment: The segment; its operations may be in any order.
        before: Records archived before it.
        max_rows: Upper bound on the rows of each table.
    """
    ended = sorted(segment.ended, key=attrgetter("number"))
    ended_activities = [activity for activity in segment.activities if not activity.is_open]
    rows, first = max(len(ended), len(segment.steps), len(segment.activities)), 0
    moment = dataclasses.replace(segment.moment, first_unread=before.first_unread)
    while rows - first > max_rows:
        end = first + max_rows
        yield Segment(
            segment.origin, moment, before.operations, ended[first:end], (), segment.steps[first:end],
            ended_activities[first:end],
        )  # fmt: skip
        first = end
    last_activities = [*ended_activities[first:], *(activity for activity in segment.activities if activity.is_open)]
    yield dataclasses.replace(
        segment,
        archived=before.operations + len(ended),
        ended=ended[first:],
        steps=segment.steps[first:],
        activities=last_activities if first else segment.activities,
    )


def encode(segment: Segment, names: Names, groups: Iterable[int] = ()) -> bytes:
    """Encode a segment of at most `MAX_ROWS` rows in each table.

    The GIL is released between columns: encoding in a training process must not block a step for a whole segment.

    Args:
        segment: The segment; `segment.names` is not used.
        names: The dictionary of its tape.
        groups: Ids of groups to write even if no record refers to them.
    """
    plans: dict[tuple[Any, ...], int] = {}
    splits = splits_of(segment)
    tables = [
        *_operation_columns(segment.ended, plans),
        *_operation_columns(segment.open, plans),
        *_packed(segment.steps, STEP_COLUMNS),
        *_activity_columns(segment.activities),
        *pack_splits(splits),
        *pack_sparse_fields(segment.activities),
    ]
    referenced = {identity for plan in plans for identity in (*plan[2:5], unpack_label(plan[5])[0], plan[7])}
    referenced.update(identity for plan in plans for identity in (*names.path_ids(plan[4]), names.caller_id(plan[12])))
    referenced.update(identity for activity in segment.activities for identity in names_of(activity))
    sites = {activity.call.call_site for activity in segment.activities if activity.call is not None}
    referenced.update(identity for site in sites for identity in names.path_ids(site))
    entries = ((identity, names.get(identity)) for identity in sorted(referenced.union(groups)))
    lines = b"".join(encode_line(identity, name) for identity, name in entries if name is not None)
    document = json.dumps(_document_of(segment, list(plans), splits), separators=(",", ":")).encode()
    raw = b"".join([SECTION_SIZES.pack(len(document), len(lines)), document, lines, *tables])
    body = zlib.compress(raw, _LEVEL)
    rows = len(segment.ended), len(segment.open), len(segment.steps), len(segment.activities)
    return encode_head(segment.origin, segment.moment, rows, body, len(raw)) + body


def _document_of(
    segment: Segment, plans: list[tuple[Any, ...]], splits: Sequence[tuple[int, Splits]]
) -> dict[str, Any]:
    origin, moment = segment.origin, segment.moment
    document = SegmentDocument(
        world_size=origin.world_size,
        host=origin.host,
        boot_id=f"{origin.boot_id:032x}",
        taken_ns=moment.taken_ns,
        wall_offset_ns=moment.wall_offset_ns,
        lost=moment.lost,
        state=moment.state,
        failure=moment.failure,
        archived=segment.archived,
        plans=[],
        splits=len(splits),
        parts=sum(len(exchange.sent) for _, exchange in splits),
        facts=len(with_sparse_fields(segment.activities)),
        calls=len(with_calls(segment.activities)),
    )
    return {**asdict(document), "plans": plans}


def _operation_columns(operations: Sequence[Operation], plans: dict[tuple[Any, ...], int]) -> Iterable[bytes]:
    """Pack operations, and add their plans to `plans`."""
    yield pack([operation.number for operation in operations], grows=True)
    yield pack([plans.setdefault(plan, len(plans)) for plan in map(_plan_of, operations)])
    entered = [operation.entered_ns for operation in operations]
    yield pack(entered, grows=True)
    for column in OPERATION_COLUMNS[3:8]:
        time.sleep(0)
        yield pack(list(map(attrgetter(column), operations)), grows=column in _GROWING)
    for column in _TIME_COLUMNS:
        time.sleep(0)
        yield pack(_offsets(list(map(attrgetter(column), operations)), entered))


def _offsets(times: list[int | None], entered: list[int]) -> list[int]:
    """Return times as stored: nanoseconds since the entry plus 1, or 0 for unknown times."""
    if times.count(None) == len(times):  # most columns of most jobs
        return [0] * len(times)
    stored = [
        0 if time_ns is None else time_ns - entry_ns + 1 for time_ns, entry_ns in zip(times, entered, strict=True)
    ]
    return stored if min(stored) >= 0 else [max(value, 0) for value in stored]


def _activity_columns(activities: Sequence[Activity]) -> Iterable[bytes]:
    yield from _packed(activities, ACTIVITY_COLUMNS[:6])
    yield pack([0 if each.completed_ns is None else each.completed_ns - each.entered_ns + 1 for each in activities])
    yield pack([activity.how or 0 for activity in activities])
    yield pack([activity.failure for activity in activities])


def _packed(rows: Sequence[object], columns: Iterable[str]) -> Iterable[bytes]:
    return [pack(list(map(attrgetter(column), rows)), grows=column in _GROWING) for column in columns]
