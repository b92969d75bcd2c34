"""All recorded calls of one rank."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import msgspec

from otel_torchdist.model.activity_kinds import TRAITS, TimeKind
from otel_torchdist.model.calls import GroupView, OperationView
from otel_torchdist.model.kinds import ActivityKind, CallMode, How
from otel_torchdist.model.operations import Operation, StepMark
from otel_torchdist.model.remote_calls import RemoteCall, Side

# --- activities -------------------------------------------------------------------------------------------------------
# Activities: intervals of one thread that are no operations, such as the step of an optimizer.


class Activity(msgspec.Struct, frozen=True, gc=False):
    """An interval of one thread that is no operation.

    Attributes:
        number: The record's number on this tape.
        kind: What the thread is busy with.
        entered_ns: When it began.
        step: The rank's step at that time.
        detail: Name id of a text that tells activities of a kind apart (0 when there is none).
        thread: Native id of the thread.
        completed_ns: When it ended; None while it is open.
        how: How the end is known; of an `ABANDONED` one, which was left with an exception, only that it was no later.
        failure: Name id of the exception that ended it (0 when that is not known).
        parent: Number of the activity of the same thread within which it began; 0 if there is none.
        message_bytes: Bytes that it has written or read; while it is open, those that it is going to, as far as known.
        files: Files that it has written or read.
        storage: Name id of the storage (0 when there is none).
        explanation: Name id of that exception's message.
        call: What else is known of a remote procedure call; None for other kinds.
    """

    number: int
    kind: ActivityKind
    entered_ns: int
    step: int
    detail: int
    thread: int
    completed_ns: int | None = None
    how: How | None = None
    failure: int = 0
    parent: int = 0
    message_bytes: int = 0
    files: int = 0
    storage: int = 0
    explanation: int = 0
    call: RemoteCall | None = None

    @property
    def is_open(self) -> bool:
        """Whether the activity has not ended yet."""
        return self.completed_ns is None


Interval: TypeAlias = Operation | Activity
"""What a tape records from its beginning to its end; the reader follows both alike."""


@dataclass(frozen=True, slots=True)
class RankHistory:
    """All recorded calls of one rank, from a tape, a dump of a flight recorder or a trace of a profiler.

    Attributes:
        rank: Global rank.
        world_size: Ranks of the job, as far as that is known; else 0.
        host: Host name, or '' if the source does not record it.
        wall_offset_ns: Add it to the times of operations for nanoseconds since the epoch.
        operations: In the order in which they were entered, in their last known state.
        lost: How many calls are known to be missing: they were overwritten or damaged.
        clock: Names the clock of its times, such as by the boot of the node; '' if that is not known. Never compare
            times of ranks with different clocks, or with none.
        until_ns: The last sign of life of the rank: nothing but this happened until then. 0 if that is not known.
        groups: The groups that are known, whether they were used or not, and possibly some of other ranks.
        steps: The ends of its steps, ascending; empty if the source does not record them.
        activities: What it recorded that is no operation, such as steps of its optimizer.
    """

    rank: int
    world_size: int
    host: str
    wall_offset_ns: int
    operations: tuple[OperationView, ...]
    lost: int
    clock: str = ""
    until_ns: int = 0
    groups: tuple[GroupView, ...] = ()
    steps: tuple[StepMark, ...] = ()
    activities: tuple[Activity, ...] = ()


# --- time of the thread that trains -----------------------------------------------------------------------------------
# Attributes the time of the thread that trains to what it was busy with, as far as activities show it.
# The only place that does so: between two calls a rank may compute, or wait for data, and readers need to know which.


def time_kind_of(activity: Activity) -> TimeKind | None:
    """Return what its thread spends the time of an activity on; None if the thread need not wait for it."""
    row = TRAITS[activity.kind]
    if row.side is Side.CALLER and (activity.call is None or activity.call.mode is not CallMode.SYNC):
        return None
    return row.time


class _Span(NamedTuple):
    begin_ns: int
    end_ns: int
    kind: TimeKind


class _Sums:
    """Disjoint intervals of one kind, ascending, with the length of all before each."""

    def __init__(self) -> None:
        self.begins, self.ends, self.before = array("q"), array("q"), array("q", [0])

    def add(self, begin_ns: int, end_ns: int) -> None:
        self.begins.append(begin_ns)
        self.ends.append(end_ns)
        self.before.append(self.before[-1] + end_ns - begin_ns)

    def between(self, begin_ns: int, end_ns: int) -> int:
        first, last = bisect_right(self.ends, begin_ns), bisect_left(self.begins, end_ns)
        if first >= last:
            return 0
        whole_ns = self.before[last] - self.before[first]
        return whole_ns - max(begin_ns - self.begins[first], 0) - max(self.ends[last - 1] - end_ns, 0)


class TimeSpent:
    """What the thread of one rank that trains was busy with."""

    def __init__(self, activities: Sequence[Activity]) -> None:
        """Take the activities of a rank that have ended."""
        thread = _training_thread(activities)
        self._fill(_flattened(_spans(activities, thread)))

    def _fill(self, spans: Iterable[_Span]) -> None:
        self._sums: dict[TimeKind, _Sums] = defaultdict(_Sums)
        for begin_ns, end_ns, kind in spans:
            self._sums[kind].add(begin_ns, end_ns)

    def between(self, begin_ns: int, end_ns: int) -> Mapping[TimeKind, int]:
        """Return the nanoseconds of each kind between two times; what no activity explains is computing."""
        found = {kind: sums.between(begin_ns, end_ns) for kind, sums in self._sums.items()}
        found[TimeKind.COMPUTING] = max(end_ns - begin_ns - sum(found.values()), 0)
        return found

    def shift(self, offset: Callable[[int], int]) -> None:
        """Move all times to another clock; `offset` returns what to add to a time."""
        spans = (
            _Span(begin_ns + offset(begin_ns), end_ns + offset(end_ns), kind)
            for kind, sums in self._sums.items()
            for begin_ns, end_ns in zip(sums.begins, sums.ends, strict=True)
        )
        self._fill(list(spans))


def _training_thread(activities: Iterable[Activity]) -> int | None:
    """Return the native id of the thread that trains; None if no activity shows it."""
    threads = Counter(one.thread for one in activities if (kind := time_kind_of(one)) and kind.shows_training_thread)
    return max(threads, key=threads.__getitem__, default=None)


def _spans(activities: Iterable[Activity], thread: int | None) -> Iterator[_Span]:
    for one in activities:
        kind = time_kind_of(one) if one.thread == thread else None
        if kind is not None and one.completed_ns is not None and one.completed_ns > one.entered_ns:
            yield _Span(one.entered_ns, one.completed_ns, kind)


def _flattened(spans: Iterable[_Span]) -> Iterator[_Span]:
    """Cut nested spans into disjoint ones: of several at a moment, the innermost counts."""
    within: list[_Span] = []
    now_ns = 0
    for span in sorted(spans, key=lambda span: (span.begin_ns, -span.end_ns)):
        while within and within[-1].end_ns <= span.begin_ns:
            inner = within.pop()
            if inner.end_ns > now_ns:
                yield _Span(now_ns, inner.end_ns, inner.kind)
                now_ns = inner.end_ns
        if within and span.begin_ns > now_ns:
            yield _Span(now_ns, span.begin_ns, within[-1].kind)
        now_ns = max(now_ns, span.begin_ns)
        within.append(span)
    while within:
        inner = within.pop()
        if inner.end_ns > now_ns:
            yield _Span(now_ns, inner.end_ns, inner.kind)
            now_ns = inner.end_ns
