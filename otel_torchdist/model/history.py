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
# Timed intervals of a thread that are not operations, such as an optimizer step.


class Activity(msgspec.Struct, frozen=True, gc=False):
    """A timed interval of a thread that is not an operation: optimizer step, data wait, checkpoint stage, RPC.

    Attributes:
        number: The record's number on this tape.
        entered_ns: When the activity began.
        step: The rank's step at that time.
        detail: Name id of the detail, whose meaning depends on the kind; 0 if there is none.
        thread: Native id of the thread.
        completed_ns: When the activity ended; None while it is open.
        how: How the end is known. `ABANDONED` means that an exception left the activity, and the end is an upper bound.
        failure: Name id of the exception that ended it; 0 if unknown.
        parent: Number of the enclosing activity of the same thread; 0 if there is none.
        message_bytes: Bytes written or read. While the activity is open: the bytes to be written or read, if known.
        files: Files written or read.
        storage: Name id of the storage; 0 if there is none.
        explanation: Name id of the exception's message.
        call: Details of a remote procedure call; None for other kinds.
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
"""The records of a tape that have a start and an end."""


@dataclass(frozen=True, slots=True)
class RankHistory:
    """All recorded calls of one rank, from a tape, a flight recorder dump or a profiler trace.

    Attributes:
        rank: Global rank.
        world_size: Number of ranks in the job; 0 if unknown.
        host: Host name; '' if the source does not record it.
        wall_offset_ns: Offset from the times of operations to nanoseconds since the epoch.
        operations: In order of entry, in their last known state.
        lost: Number of calls known to be missing, because they were overwritten or damaged.
        clock: Name of the clock, such as the boot id of the node; '' if unknown. Never compare the times of ranks with
            different or unknown clocks.
        until_ns: The last sign of life. Until then the rank did nothing that is not recorded here. 0 if unknown.
        groups: The known groups, used or not, possibly including groups of other ranks.
        steps: The ends of steps, ascending; empty if the source does not record them.
        activities: The recorded activities, such as optimizer steps.
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
# Attributes the training thread's time between calls to computing, waiting for data, and the other kinds of time.


def time_kind_of(activity: Activity) -> TimeKind | None:
    """Return the kind of time that a thread spends in an activity, or None if the thread need not wait for it."""
    row = TRAITS[activity.kind]
    if row.side is Side.CALLER and (activity.call is None or activity.call.mode is not CallMode.SYNC):
        return None
    return row.time


class _Span(NamedTuple):
    begin_ns: int
    end_ns: int
    kind: TimeKind


class _Sums:
    """Disjoint ascending intervals of one kind, with prefix sums of their lengths."""

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
    """The training thread's time, by kind."""

    def __init__(self, activities: Sequence[Activity]) -> None:
        """Sum up the ended activities of a rank."""
        thread = _training_thread(activities)
        self._fill(_flattened(_spans(activities, thread)))

    def _fill(self, spans: Iterable[_Span]) -> None:
        self._sums: dict[TimeKind, _Sums] = defaultdict(_Sums)
        for begin_ns, end_ns, kind in spans:
            self._sums[kind].add(begin_ns, end_ns)

    def between(self, begin_ns: int, end_ns: int) -> Mapping[TimeKind, int]:
        """Return the nanoseconds of each kind between two times. Time outside of activities is computing."""
        spent = {kind: sums.between(begin_ns, end_ns) for kind, sums in self._sums.items()}
        spent[TimeKind.COMPUTING] = max(end_ns - begin_ns - sum(spent.values()), 0)
        return spent

    def shift(self, offset: Callable[[int], int]) -> None:
        """Move all times to another clock; `offset` returns the nanoseconds to add to a time."""
        spans = (
            _Span(begin_ns + offset(begin_ns), end_ns + offset(end_ns), kind)
            for kind, sums in self._sums.items()
            for begin_ns, end_ns in zip(sums.begins, sums.ends, strict=True)
        )
        self._fill(list(spans))


def _training_thread(activities: Iterable[Activity]) -> int | None:
    """Return the native id of the training thread, or None if no activity shows it."""
    threads = Counter(
        activity.thread for activity in activities if (kind := time_kind_of(activity)) and kind.shows_training_thread
    )
    return max(threads, key=threads.__getitem__, default=None)


def _spans(activities: Iterable[Activity], thread: int | None) -> Iterator[_Span]:
    for activity in activities:
        kind = time_kind_of(activity) if activity.thread == thread else None
        if kind is not None and activity.completed_ns is not None and activity.completed_ns > activity.entered_ns:
            yield _Span(activity.entered_ns, activity.completed_ns, kind)


def _flattened(spans: Iterable[_Span]) -> Iterator[_Span]:
    """Cut nested spans into disjoint spans, where the innermost span wins."""
    enclosing: list[_Span] = []
    now_ns = 0
    for span in sorted(spans, key=lambda span: (span.begin_ns, -span.end_ns)):
        while enclosing and enclosing[-1].end_ns <= span.begin_ns:
            innermost = enclosing.pop()
            if innermost.end_ns > now_ns:
                yield _Span(now_ns, innermost.end_ns, innermost.kind)
                now_ns = innermost.end_ns
        if enclosing and span.begin_ns > now_ns:
            yield _Span(now_ns, span.begin_ns, enclosing[-1].kind)
        now_ns = max(now_ns, span.begin_ns)
        enclosing.append(span)
    while enclosing:
        innermost = enclosing.pop()
        if innermost.end_ns > now_ns:
            yield _Span(now_ns, innermost.end_ns, innermost.kind)
            now_ns = innermost.end_ns
