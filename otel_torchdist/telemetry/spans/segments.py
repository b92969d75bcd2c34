"""Cuts the operations and activities of one rank into segments of steps, and builds the *anchor* of each segment.

The anchor is the span of the segment itself: the parent of the spans of its operations and activities.

A segment ends with its step, at a stall, after 30 s or after 2,000 operations, whichever comes first. An operation
belongs to the segment in which it *ends*. So a segment can be exported as soon as it has ended, and no segment waits
for an operation that may hang for hours. Activities do not end segments: they belong to the first segment that reaches
their end. The cutter works only on monotonic times, without ids, spans or I/O.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from opentelemetry.util.types import AttributeValue

from otel_torchdist.model.history import Activity, Interval
from otel_torchdist.model.ids import anchor_span_id, run_label, trace_id_of_step
from otel_torchdist.model.operations import Operation, StepMark
from otel_torchdist.model.reports.incident import LinkTarget
from otel_torchdist.model.text import compress_ranks
from otel_torchdist.tape.identity import TapeIdentity
from otel_torchdist.tape.names.reader import NamesReader
from otel_torchdist.tape.status import WallClock
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan
from otel_torchdist.telemetry.spans.operation import MIN_DURATION_NS

SEGMENT_NS: Final = 30_000_000_000
MAX_OPERATIONS: Final = 2_000
MAX_ACTIVITIES: Final = 2_000
"""Upper bound on the activities that wait for a segment. A rank has a few per step; a forged tape may have many."""


class SegmentEnd(enum.Enum):
    """The reason for the end of a segment."""

    STEP = "step"
    STALL = "stall"
    TIME = "time"
    SIZE = "size"
    LOST = "lost"
    """An operation of a later step was read, but not the end of this step."""
    CLOSE = "close"
    """The tape has ended."""


@dataclass(frozen=True, slots=True)
class StepSegment:
    """A segment of one rank's step.

    Attributes:
        step: The step's number.
        number: Position among the exported segments of the step, from 0.
        start_ns: Monotonic time.
        end_ns: Monotonic time, not before `start_ns`.
        end: Reason for its end.
        operations: Operations that ended in it, by the time of their end. They may have been entered before `start_ns`.
            They may also have ended before it, if their end became known after the earlier segment was cut.
        activities: Activities that ended in it or since the previous segment, by the time of their end.
    """

    step: int
    number: int
    start_ns: int
    end_ns: int
    end: SegmentEnd
    operations: tuple[Operation, ...]
    activities: tuple[Activity, ...] = ()


@dataclass(frozen=True, slots=True)
class CutterState:
    """The position of a cutter, for its successor.

    Attributes:
        start_ns: Start of the current segment.
        step: Its step; None before the first record.
        number: Its position in the step.
        pending: Record numbers of ended operations and activities that are not in a segment yet.
    """

    start_ns: int
    step: int | None
    number: int
    pending: frozenset[int]


class SegmentCutter:
    """Cuts the events of a tape, in the order of the tape, into segments."""

    def __init__(self, start_ns: int) -> None:
        """Begin the first segment at `start_ns`. The first record determines its step."""
        self._start_ns = start_ns
        self._step: int | None = None
        self._number = 0
        self._pending: list[Operation] = []
        self._activities: list[Activity] = []
        self._cut: list[StepSegment] = []

    @property
    def state(self) -> CutterState:
        """The cutter's position. The segments cut so far must have been taken."""
        pending = frozenset(interval.number for interval in (*self._pending, *self._activities))
        return CutterState(self._start_ns, self._step, self._number, pending)

    def resume(self, state: CutterState, ended: Iterable[Interval]) -> None:
        """Continue from another cutter's state. `ended` must include its pending operations and activities."""
        self._start_ns, self._step, self._number = state.start_ns, state.step, state.number
        pending = [interval for interval in ended if interval.number in state.pending]
        self.ended(interval for interval in pending if isinstance(interval, Operation))
        self.activities_ended(interval for interval in pending if isinstance(interval, Activity))

    @property
    def step(self) -> int:
        """The current step."""
        return self._step or 0

    @property
    def is_idle(self) -> bool:
        """Whether no operation has ended since the last cut."""
        return not self._pending

    def assume_step(self, step: int) -> None:
        """Set the current step, unless a record has already shown it."""
        if self._step is None:
            self._step = step

    def take(self) -> list[StepSegment]:
        """Return the segments cut since the last call."""
        cut, self._cut = self._cut, []
        return cut

    def ended(self, operations: Iterable[Operation]) -> None:
        """Add ended operations. Each goes to the first uncut segment that reaches its end."""
        self._pending.extend(operations)
        self._pending.sort(key=_end_ns)

    def activities_ended(self, activities: Iterable[Activity]) -> None:
        """Add ended activities."""
        self._activities.extend(activities)
        self._activities.sort(key=_end_ns)

    def entered(self, interval: Interval) -> None:
        """Process an entered operation or activity. A later step in it shows that the end of this step was missed."""
        self.assume_step(interval.step)
        if interval.step > self.step:
            self._end_step(interval.entered_ns, SegmentEnd.LOST, interval.step)

    def step_ended(self, mark: StepMark) -> None:
        """Process the end of a step. Skipped steps, without any record, have no segments."""
        self.assume_step(mark.step)
        if mark.step < self.step:
            return
        if mark.step > self.step:
            self._begin_step(mark.step)
        self._end_step(mark.ended_ns, SegmentEnd.STEP, mark.step + 1)

    def pass_time(self, until_ns: int) -> None:
        """Cut segments that have become too long or too large. No later record may have a time before `until_ns`."""
        while self._pending:
            start_ns = self._grid(_end_ns(self._pending[0]))
            if start_ns + SEGMENT_NS > until_ns:
                break
            self._close(start_ns, start_ns + SEGMENT_NS, SegmentEnd.TIME)
        if not self._pending and any(activity.call is not None for activity in self._activities[:1]):
            # An RPC worker may be in no group, and never end a step.
            start_ns = self._grid(_end_ns(self._activities[0]))
            if start_ns + SEGMENT_NS <= until_ns:
                self._close(start_ns, start_ns + SEGMENT_NS, SegmentEnd.TIME)
        ready = bisect_right(self._pending, until_ns, key=_end_ns)
        if ready > MAX_OPERATIONS:
            end_ns = _end_ns(self._pending[MAX_OPERATIONS * (ready // MAX_OPERATIONS) - 1])
            self._close(self._grid(end_ns), end_ns, SegmentEnd.SIZE)
        ready = bisect_right(self._activities, until_ns, key=_end_ns)
        if ready > MAX_ACTIVITIES:
            end_ns = max(_end_ns(self._activities[ready - 1]), self._start_ns)
            self._close(self._grid(end_ns), end_ns, SegmentEnd.SIZE)

    def cut(self, at_ns: int, end: SegmentEnd) -> None:
        """End the segment now. A stall has a segment even without operations, as the parent of its spans."""
        at_ns = max(at_ns, self._start_ns)
        self.pass_time(at_ns)
        self._close(self._grid(at_ns), at_ns, end)

    def finish(self, at_ns: int) -> None:
        """End the last segment at `at_ns`, or at the end of the last operation or activity if that is later."""
        last = (*self._pending[-1:], *self._activities[-1:])
        self.cut(max(at_ns, *map(_end_ns, last), self._start_ns), SegmentEnd.CLOSE)

    def _end_step(self, at_ns: int, end: SegmentEnd, next_step: int) -> None:
        self.cut(at_ns, end)
        self._begin_step(next_step)

    def _begin_step(self, step: int) -> None:
        self._step = step
        self._number = 0

    def _grid(self, at_ns: int) -> int:
        """Return the start of the 30 s window that contains `at_ns`. Windows count from the last cut."""
        return self._start_ns + max(at_ns - self._start_ns - 1, 0) // SEGMENT_NS * SEGMENT_NS

    def _close(self, start_ns: int, end_ns: int, end: SegmentEnd) -> None:
        count = bisect_right(self._pending, end_ns, key=_end_ns)
        operations, self._pending = self._pending[:count], self._pending[count:]
        while len(operations) > MAX_OPERATIONS:
            full, operations = operations[:MAX_OPERATIONS], operations[MAX_OPERATIONS:]
            full_ns = max(_end_ns(full[-1]), start_ns)
            self._append(start_ns, full_ns, SegmentEnd.SIZE, full)
            start_ns = full_ns
        self._append(start_ns, end_ns, end, operations)
        self._start_ns = end_ns

    def _append(self, start_ns: int, end_ns: int, end: SegmentEnd, operations: list[Operation]) -> None:
        """Add a segment unless it is empty: without operations, activities, a stall, or the end of a step."""
        count = bisect_right(self._activities, end_ns, key=_end_ns)
        is_end_of_step = end is SegmentEnd.STEP and (end_ns > start_ns or self._number == 0)
        if operations or count or end is SegmentEnd.STALL or is_end_of_step:
            activities, self._activities = self._activities[:count], self._activities[count:]
            contents = tuple(operations), tuple(activities)
            self._cut.append(StepSegment(self.step, self._number, start_ns, end_ns, end, *contents))
            self._number += 1


def _end_ns(interval: Interval) -> int:
    return interval.entered_ns if interval.completed_ns is None else interval.completed_ns


MAX_GROUPS: Final = 16
"""Upper bound on the groups listed on an anchor."""


class AnchorSpans:
    """Builds the anchors of one tape."""

    def __init__(
        self,
        identity: TapeIdentity,
        names: NamesReader,
        clock: WallClock,
        links: Sequence[LinkTarget],
        describe: Callable[[], Mapping[str, AttributeValue]],
    ) -> None:
        """Build anchors of a tape.

        Args:
            identity: The tape's identity.
            names: Its dictionary.
            clock: Converts its times. The caller keeps it up to date.
            links: Added to every anchor.
            describe: Called before the first anchor. Returns further attributes for all anchors.
        """
        self._identity = identity
        self._names = names
        self._clock = clock
        self._links = tuple(links)
        self._describe = describe
        self._described: Mapping[str, AttributeValue] | None = None

    def span(self, segment: StepSegment, run_id: int, links: tuple[LinkTarget, ...]) -> FinishedSpan:
        """Build the anchor of a segment.

        Args:
            segment: The segment.
            run_id: The run.
            links: Links specific to this anchor.
        """
        identity = self._identity
        start_ns = self._clock.wall_ns(segment.start_ns)
        if self._described is None:  # not earlier: a rank describes itself shortly after it has created its tape
            self._described = self._describe()
        attributes: dict[str, AttributeValue] = {
            **self._described,
            semconv.RANK: identity.rank,
            semconv.WORLD_SIZE: identity.world_size,
            semconv.RUN: run_label(run_id),
            semconv.STEP: segment.step,
            semconv.STEP_SEGMENT: segment.number,
            semconv.STEP_SEGMENT_END: segment.end.value,
            semconv.HOST_NAME: identity.host,
            semconv.PROCESS_PID: identity.pid,
        }
        groups = self._groups(segment.operations)
        if groups:
            attributes[semconv.GROUP_RANKS] = groups
        return FinishedSpan(
            name=semconv.STEP_SPAN.format(rank=identity.rank),
            trace_id=trace_id_of_step(run_id, segment.step),
            span_id=anchor_span_id(identity.nonce, segment.step, segment.number),
            parent_id=None,
            start_ns=start_ns,
            end_ns=max(self._clock.wall_ns(segment.end_ns), start_ns + MIN_DURATION_NS),
            attributes=attributes,
            links=(*links, *self._links),
        )

    def _groups(self, operations: Sequence[Operation]) -> list[str]:
        """Return the members of the groups used in a segment, as text."""
        groups = {operation.group: self._names.group(operation.group) for operation in operations}
        texts = {f"{group.key}: {compress_ranks(group.ranks)}" for group in groups.values() if group}
        return sorted(texts)[:MAX_GROUPS]
