"""Reduces the history of a rank to what is drawn of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from otel_torchdist.clocks.alignment import Alignment
from otel_torchdist.model.activity_kinds import Track, titles_on
from otel_torchdist.model.calls import Channel, OperationView
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import ActivityKind
from otel_torchdist.model.names import SignatureName
from otel_torchdist.model.operations import AWAITED, Operation
from otel_torchdist.timeline.model import (
    OPEN,
    UNKNOWN,
    CallKind,
    ChannelSlices,
    RankTimeline,
    Selection,
    Slices,
    Span,
)

_NO_GROUP: Final = "unknown group"


_ACTIVITIES: Final = titles_on(Track.ACTIVITIES)
_CHECKPOINTS: Final = titles_on(Track.CHECKPOINTS)


def timeline_of(history: RankHistory, shift_ns: int, selection: Selection) -> RankTimeline:
    """Return what is drawn of a rank.

    Args:
        history: Its calls.
        shift_ns: Add it to its times for nanoseconds since the epoch.
        selection: What is to be drawn.
    """
    reading = _Reading(shift_ns, selection)
    for view in history.operations:
        reading.take(view)
    steps = tuple(_chosen(_steps(history, shift_ns), selection))
    activities = tuple(_chosen(_activities(history, shift_ns, _ACTIVITIES), selection))
    checkpoints = tuple(_chosen(_activities(history, shift_ns, _CHECKPOINTS), selection))
    begin = reading.slices.begin
    for places in reading.groups.values():
        places.sort(key=begin.__getitem__)
    return RankTimeline(
        rank=history.rank,
        host=history.host,
        shift_ns=shift_ns,
        until_ns=history.until_ns + shift_ns if history.until_ns else 0,
        kinds=reading.kinds,
        slices=reading.slices,
        groups=reading.groups,
        channels=reading.channels,
        steps=steps,
        activities=activities,
        checkpoints=checkpoints,
    )


def aligned(rank: RankTimeline, alignment: Alignment) -> RankTimeline:
    """Move what is drawn of a rank to the time that all ranks are compared in; its columns are changed in place."""

    def moved(time_ns: int) -> int:
        return alignment.epoch_ns(rank.rank, time_ns - rank.shift_ns)

    def span(one: Span) -> Span:
        end_ns = OPEN if one.end_ns == OPEN else moved(one.end_ns)
        return replace(one, begin_ns=moved(one.begin_ns), end_ns=end_ns)

    slices = rank.slices
    for place, (begin_ns, end_ns) in enumerate(zip(slices.begin, slices.end, strict=True)):
        slices.begin[place] = moved(begin_ns)
        if end_ns != OPEN:
            slices.end[place] = moved(end_ns)
    for places in rank.groups.values():
        places.sort(key=slices.begin.__getitem__)  # damaged times may have changed their order
    return replace(
        rank,
        shift_ns=moved(rank.newest_ns) - rank.newest_ns + rank.shift_ns,
        until_ns=rank.until_ns and moved(rank.until_ns),
        steps=tuple(sorted(map(span, rank.steps), key=_begin)),
        activities=tuple(sorted(map(span, rank.activities), key=_begin)),
        checkpoints=tuple(sorted(map(span, rank.checkpoints), key=_begin)),
    )


def _begin(span: Span) -> int:
    return span.begin_ns


class _Reading:
    """Fills the columns of one rank."""

    def __init__(self, shift_ns: int, selection: Selection) -> None:
        self._shift_ns = shift_ns
        self._selection = selection
        self.slices = Slices()
        self.kinds: list[CallKind] = []
        self.groups: dict[str, list[int]] = {}
        self.channels: dict[Channel, ChannelSlices] = {}
        self._tracks: dict[str, str] = {}
        # Names are shared by calls, and comparing their addresses is much faster than comparing them.
        self._known: dict[tuple[object, ...], tuple[int, list[int], ChannelSlices]] = {}

    def take(self, view: OperationView) -> None:
        """Add a call, if it is to be drawn."""
        record, slices = view.record, self.slices
        begin_ns, end_ns = _times(record, self._shift_ns)
        if not self._selection.has_step(record.step) or not self._selection.has_time(begin_ns, end_ns):
            return
        key = (id(view.signature), id(view.group), id(view.call_site), view.name, view.label, view.failure)
        key += (record.message_bytes, record.peer, view.operation_id.channel)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._make(view)
        kind, places, channel = known
        place = len(slices)
        places.append(place)
        channel.places.append(place)
        slices.begin.append(begin_ns)
        slices.end.append(end_ns)
        slices.kind.append(kind)
        slices.sequence.append(record.sequence)
        slices.step.append(record.step)
        slices.wait.append(_wait_ns(record))
        slices.how.append(record.how or 0)

    def _make(self, view: OperationView) -> tuple[int, list[int], ChannelSlices]:
        record, group, signature = view.record, view.group, view.signature
        self.kinds.append(
            CallKind(
                name=view.name,
                group=group.label if group is not None else "",
                message_bytes=record.message_bytes,
                shapes=_shapes(signature) if signature is not None else "",
                dtype=",".join(signature.dtypes) if signature is not None else "",
                reduce_op=signature.reduce_op if signature is not None else "",
                site=view.call_site,
                peer=record.peer,
                label=view.label,
                failure=view.failure,
            )
        )
        track = self._track(view)
        channel = self.channels.setdefault(view.operation_id.channel, ChannelSlices(group))
        return len(self.kinds) - 1, self.groups.setdefault(track, []), channel

    def _track(self, view: OperationView) -> str:
        """The name of a group's track: its label, with its key if another one has the same label."""
        group = view.group
        if group is None:
            return _NO_GROUP
        owner = self._tracks.setdefault(group.label, group.key)
        return group.label if owner == group.key else f"{group.label} ({group.key})"


def _times(record: Operation, shift_ns: int) -> tuple[int, int]:
    begin_ns = record.arrived_ns
    if record.completed_ns is None:
        return begin_ns + shift_ns, OPEN
    return begin_ns + shift_ns, max(record.completed_ns, begin_ns) + shift_ns


def _wait_ns(record: Operation) -> int:
    """How long a wait lasted. A wait that ended the operation is recorded as its end alone."""
    returned_ns = record.completed_ns if record.how in AWAITED else record.wait_returned_ns
    if record.wait_entered_ns is None or returned_ns is None:
        return UNKNOWN
    return max(returned_ns - record.wait_entered_ns, 0)


def _shapes(signature: SignatureName) -> str:
    shapes = " ".join(f"[{','.join(map(str, shape))}]" for shape in signature.shapes)
    more = signature.tensors - len(signature.shapes)
    return f"{shapes} and {more} more" if shapes and more > 0 else shapes


def _chosen(spans: Iterator[Span], selection: Selection) -> Iterator[Span]:
    for span in spans:
        if selection.has_step(span.step) and selection.has_time(span.begin_ns, span.end_ns):
            yield span


def _steps(history: RankHistory, shift_ns: int) -> Iterator[Span]:
    """Each step lasts from the end of the one before; the first one from its first call, if that is recorded."""
    marks = sorted(history.steps, key=lambda mark: mark.ended_ns)
    if not marks:
        return
    entered = sorted(view.record.entered_ns for view in history.operations)
    until = bisect_right(entered, marks[0].ended_ns)
    begin_ns = entered[0] if until else marks[0].ended_ns
    for mark in marks:
        yield Span(f"step {mark.step}", begin_ns + shift_ns, mark.ended_ns + shift_ns, mark.step)
        begin_ns = mark.ended_ns
    if entered and entered[-1] > begin_ns:
        step = marks[-1].step + 1
        yield Span(f"step {step}", begin_ns + shift_ns, OPEN, step)


def _activities(history: RankHistory, shift_ns: int, names: Mapping[ActivityKind, str]) -> Iterator[Span]:
    shown = (activity for activity in history.activities if activity.kind in names)
    for activity in sorted(shown, key=lambda one: one.entered_ns):
        begin_ns = activity.entered_ns
        end_ns = OPEN if activity.completed_ns is None else max(activity.completed_ns, begin_ns) + shift_ns
        name = names[activity.kind]
        yield Span(f"{name} (open)" if activity.is_open else name, begin_ns + shift_ns, end_ns, activity.step)
