"""Draws a rank: moves its calls, steps and activities to one clock, and sorts them into tracks."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from otel_torchdist.analysis.clocks.alignment import Alignment
from otel_torchdist.analysis.timeline.rank_timeline import DrawnSpan, Extent, RankTimeline
from otel_torchdist.model.activity_kinds import Track, titles_on
from otel_torchdist.model.kinds import ActivityKind
from otel_torchdist.sources.history.call_kinds import CallKind
from otel_torchdist.sources.history.call_table import OPEN, RankCalls

_NO_GROUP: Final = "unknown group"
_ACTIVITIES: Final = titles_on(Track.ACTIVITIES)
_CHECKPOINTS: Final = titles_on(Track.CHECKPOINTS)


def timeline_of(calls: RankCalls, shift_ns: int, extent: Extent) -> RankTimeline:
    """Return the drawing of a rank.

    Args:
        calls: The rank's calls. Their columns are changed in place.
        shift_ns: Offset from the rank's times to nanoseconds since the epoch.
        extent: The part to draw.
    """
    drawn = calls if extent == Extent(extent.ranks) else calls.only(_indices_to_draw(calls, shift_ns, extent))
    waits = array("q", map(drawn.wait_ns, range(len(drawn))))
    drawn.drop("returned", "wait_entered", "wait_returned", "known_times")
    for index, (started_ns, ended_ns) in enumerate(zip(drawn.started, drawn.ended, strict=True)):
        drawn.started[index] = started_ns + shift_ns
        if ended_ns != OPEN:
            drawn.ended[index] = max(ended_ns, started_ns) + shift_ns
    return RankTimeline(
        calls=drawn,
        waits=waits,
        shift_ns=shift_ns,
        until_ns=calls.until_ns + shift_ns if calls.until_ns else 0,
        groups=_tracks(drawn),
        steps=tuple(_within(_steps(calls, shift_ns), extent)),
        activities=tuple(_within(_activities(calls, shift_ns, _ACTIVITIES), extent)),
        checkpoints=tuple(_within(_activities(calls, shift_ns, _CHECKPOINTS), extent)),
    )


def aligned(rank: RankTimeline, alignment: Alignment) -> RankTimeline:
    """Move the drawing of a rank to the common clock of all ranks. Columns are changed in place."""

    def moved(time_ns: int) -> int:
        return alignment.epoch_ns(rank.rank, time_ns - rank.shift_ns)

    def moved_span(span: DrawnSpan) -> DrawnSpan:
        end_ns = OPEN if span.end_ns == OPEN else moved(span.end_ns)
        return replace(span, begin_ns=moved(span.begin_ns), end_ns=end_ns)

    calls, newest_ns = rank.calls, rank.newest_ns
    for index, (begin_ns, end_ns) in enumerate(zip(calls.started, calls.ended, strict=True)):
        calls.started[index] = moved(begin_ns)
        if end_ns != OPEN:
            calls.ended[index] = moved(end_ns)
    return replace(
        rank,
        shift_ns=moved(newest_ns) - newest_ns + rank.shift_ns,
        until_ns=rank.until_ns and moved(rank.until_ns),
        groups=_tracks(calls),  # damaged times may have changed the order of calls
        steps=tuple(sorted(map(moved_span, rank.steps), key=_begin)),
        activities=tuple(sorted(map(moved_span, rank.activities), key=_begin)),
        checkpoints=tuple(sorted(map(moved_span, rank.checkpoints), key=_begin)),
    )


def _begin(span: DrawnSpan) -> int:
    return span.begin_ns


def _indices_to_draw(calls: RankCalls, shift_ns: int, extent: Extent) -> Iterator[int]:
    for index, (step, started_ns, ended_ns) in enumerate(zip(calls.step, calls.started, calls.ended, strict=True)):
        end_ns = OPEN if ended_ns == OPEN else max(ended_ns, started_ns) + shift_ns
        if extent.has_step(step) and extent.has_time(started_ns + shift_ns, end_ns):
            yield index


def _tracks(calls: RankCalls) -> dict[str, array[int]]:
    """Return the indices of the calls in each group, by ascending start."""
    indices: dict[int, list[int]] = {}
    for index, kind in enumerate(calls.kind):
        indices.setdefault(kind, []).append(index)
    owners: dict[str, str] = {}
    tracks: dict[str, list[int]] = {}
    for kind, of_kind in indices.items():
        tracks.setdefault(_track(calls.kinds[kind], owners), []).extend(of_kind)
    return {
        title: array("i", sorted(on_track, key=lambda index: (calls.started[index], index)))
        for title, on_track in tracks.items()
    }


def _track(kind: CallKind, owners: dict[str, str]) -> str:
    """Return the name of a group's track: its label, with its key if another group has the same label."""
    group = kind.group
    if group is None:
        return _NO_GROUP
    owner = owners.setdefault(group.label, group.key)
    return group.label if owner == group.key else f"{group.label} ({group.key})"


def _within(spans: Iterator[DrawnSpan], extent: Extent) -> Iterator[DrawnSpan]:
    for span in spans:
        if extent.has_step(span.step) and extent.has_time(span.begin_ns, span.end_ns):
            yield span


def _steps(calls: RankCalls, shift_ns: int) -> Iterator[DrawnSpan]:
    """Yield the steps. Each begins at the end of the previous step, the first at the first call, if recorded."""
    marks = sorted(calls.steps, key=lambda mark: mark.ended_ns)
    if not marks:
        return
    first_ns, ended_ns = calls.first_ns, marks[0].ended_ns
    begin_ns = first_ns if first_ns is not None and first_ns <= ended_ns else ended_ns
    for mark in marks:
        yield DrawnSpan(f"step {mark.step}", begin_ns + shift_ns, mark.ended_ns + shift_ns, mark.step)
        begin_ns = mark.ended_ns
    if first_ns is not None and calls.last_entered_ns > begin_ns:
        step = marks[-1].step + 1
        yield DrawnSpan(f"step {step}", begin_ns + shift_ns, OPEN, step)


def _activities(calls: RankCalls, shift_ns: int, names: Mapping[ActivityKind, str]) -> Iterator[DrawnSpan]:
    shown = (activity for activity in calls.activities if activity.kind in names)
    for activity in sorted(shown, key=lambda activity: activity.entered_ns):
        begin_ns = activity.entered_ns
        end_ns = OPEN if activity.completed_ns is None else max(activity.completed_ns, begin_ns) + shift_ns
        name = names[activity.kind]
        yield DrawnSpan(f"{name} (open)" if activity.is_open else name, begin_ns + shift_ns, end_ns, activity.step)
