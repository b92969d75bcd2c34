"""Attributes the time of the thread that trains to what it was busy with, as far as activities show it.

The only place that does so: between two calls a rank may compute, or wait for data, and readers need to know which.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from otel_torchdist.model.activities import Activity
from otel_torchdist.model.activity_kinds import TRAITS
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import CallMode
from otel_torchdist.model.remote_calls import Side
from otel_torchdist.model.time_kinds import TimeKind


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
