"""Attributes the time of the thread that trains to what it was busy with, as far as activities show it.

The only place that does so: between two calls a rank may compute, or wait for data, and readers need to know which.
"""

from __future__ import annotations

import enum
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from otel_torchdist.model.activities import Activity
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import ActivityKind, CallMode


class TimeKind(enum.Enum):
    """What a thread spends time on between its calls; the value is its name in documents."""

    DATA = "data"
    """It waits for a batch."""
    CHECKPOINT = "checkpoint"
    """It saves or loads a checkpoint."""
    OPTIMIZER = "optimizer"
    """It is in an optimizer's step."""
    BACKWARD = "backward"
    """It is in a backward pass."""
    REMOTE_CALL = "remote call"
    """It waits for a remote procedure call, or for all workers."""
    COMPUTING = "computing"
    """None of these: forward passes, and whatever else its code does."""


def time_kind_of(activity: Activity) -> TimeKind | None:
    """Return what its thread spends the time of an activity on; None if the thread need not wait for it."""
    match activity.kind:
        case ActivityKind.DATA_WAIT:
            return TimeKind.DATA
        case (
            ActivityKind.CHECKPOINT_SAVE
            | ActivityKind.CHECKPOINT_LOAD
            | ActivityKind.CHECKPOINT_ASYNC_SAVE
            | ActivityKind.CHECKPOINT_STAGE
            | ActivityKind.TORCH_SAVE
            | ActivityKind.TORCH_LOAD
        ):
            return TimeKind.CHECKPOINT
        case ActivityKind.OPTIMIZER_STEP:
            return TimeKind.OPTIMIZER
        case ActivityKind.BACKWARD:
            return TimeKind.BACKWARD
        case ActivityKind.RPC_CLIENT:
            waits = activity.call is not None and activity.call.mode is CallMode.SYNC
            return TimeKind.REMOTE_CALL if waits else None
        case ActivityKind.RPC_JOIN | ActivityKind.RPC_SHUTDOWN:
            return TimeKind.REMOTE_CALL
        case ActivityKind.RPC_SERVER:
            return None


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

    def __init__(self, history: RankHistory) -> None:
        """Take the activities of a history that have ended."""
        thread = _training_thread(history.activities)
        self._fill(_flattened(_spans(history.activities, thread)))

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


_OF_TRAINING: Final = (TimeKind.OPTIMIZER, TimeKind.BACKWARD, TimeKind.DATA)
"""Kinds that show which thread trains: only that thread's data waits are recorded."""


def _training_thread(activities: Iterable[Activity]) -> int | None:
    """Return the native id of the thread that trains; None if no activity shows it."""
    threads = Counter(one.thread for one in activities if time_kind_of(one) in _OF_TRAINING)
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
