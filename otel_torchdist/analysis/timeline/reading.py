"""Builds the drawing of a rank from its calls."""

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
    drawn.drop("returned", "waited", "resumed", "known")
    for place, (begun_ns, ended_ns) in enumerate(zip(drawn.begun, drawn.ended, strict=True)):
        drawn.begun[place] = begun_ns + shift_ns
        if ended_ns != OPEN:
            drawn.ended[place] = max(ended_ns, begun_ns) + shift_ns
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
    for place, (begin_ns, end_ns) in enumerate(zip(calls.begun, calls.ended, strict=True)):
        calls.begun[place] = moved(begin_ns)
        if end_ns != OPEN:
            calls.ended[place] = moved(end_ns)
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
    for place, (step, begun_ns, ended_ns) in enumerate(zip(calls.step, calls.begun, calls.ended, strict=True)):
        end_ns = OPEN if ended_ns == OPEN else max(ended_ns, begun_ns) + shift_ns
        if extent.has_step(step) and extent.has_time(begun_ns + shift_ns, end_ns):
            yield place


def _tracks(calls: RankCalls) -> dict[str, array[int]]:
    """Return the indices of the calls in each group, by ascending start."""
    places: dict[int, list[int]] = {}
    for place, kind in enumerate(calls.kind):
        places.setdefault(kind, []).append(place)
    owners: dict[str, str] = {}
    tracks: dict[str, list[int]] = {}
    for kind, of_kind in places.items():
        tracks.setdefault(_track(calls.kinds[kind], owners), []).extend(of_kind)
    return {
        title: array("i", sorted(on_track, key=lambda place: (calls.begun[place], place)))
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
