"""Turns the records of one tape into spans: an anchor for each segment of a step, with its operations as children.

All ranks of a run share one trace per step. A segment is passed on once, after its end, anchor first. So no parent is
sent after its children, each span id is sent once, and no segment waits for a hanging operation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from opentelemetry.util.types import AttributeValue

from otel_torchdist.model.history import Activity, Interval
from otel_torchdist.model.ids import lone_run_id, operation_span_id, trace_id_of_step
from otel_torchdist.model.kinds import RunIdState, TapeState
from otel_torchdist.model.operations import Operation, StepMark
from otel_torchdist.model.reports.incident import LinkTarget
from otel_torchdist.tape.reading.batch import Batch
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.status import TapeStatus, WallClock
from otel_torchdist.telemetry.spans.activities import ActivitySpans, HeldActivities
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan, SpanSink
from otel_torchdist.telemetry.spans.operation import OperationSpans
from otel_torchdist.telemetry.spans.sampling import SamplerState, StepSampler
from otel_torchdist.telemetry.spans.segments import AnchorSpans, CutterState, SegmentCutter, SegmentEnd, StepSegment

SETTLE_NS: Final = 30_000_000_000
"""Maximum time that spans wait for the ranks to agree on the run id, counted from the creation of the tape."""
MAX_HELD_SPANS: Final = 20_000

_SETTLED: Final = (RunIdState.AGREED, RunIdState.UNAGREED)


@dataclass(frozen=True, slots=True)
class _Anchor:
    """The last anchor passed to the sink."""

    step: int
    end: SegmentEnd
    target: LinkTarget


@dataclass(frozen=True, slots=True)
class SpansState:
    """The export position in a tape, for the next reader.

    Attributes:
        cutter: Position of the next segment.
        sampler: Decisions of the sampler.
        dropped: See `RankSpans.dropped`.
        is_closed: Whether all spans have been passed to the sink.
    """

    cutter: CutterState
    sampler: SamplerState
    dropped: int
    is_closed: bool


class RankSpans:
    """Turns the records of one tape into spans, and passes them to a sink. Not thread-safe.

    Attributes:
        dropped: Number of spans dropped because too many waited for the ranks to agree on the run id.
    """

    def __init__(
        self,
        tape: TapeReader,
        sink: SpanSink,
        sampler: StepSampler,
        links: Sequence[LinkTarget] = (),
        on_emitted: Callable[[StepSegment, FinishedSpan], None] | None = None,
        describe: Callable[[], Mapping[str, AttributeValue]] = dict[str, AttributeValue],
        run_of: Callable[[int], int | None] = lambda _: None,
    ) -> None:
        """Pass the spans of `tape` to `sink`.

        Args:
            tape: The tape.
            sink: Receives the spans.
            sampler: Selects the steps.
            links: Added to every anchor.
            on_emitted: Called with every segment passed to the sink, and its anchor.
            describe: Called before the first anchor. Returns further attributes for all anchors.
            run_of: Returns the run of the tape with a nonce; None if unknown.
        """
        self.dropped = 0
        self._tape = tape
        self._sink = sink
        self._sampler = sampler
        self._on_emitted = on_emitted
        self._identity = tape.identity
        self._clock = WallClock(tape.identity)
        self._anchors = AnchorSpans(tape.identity, tape.names, self._clock, links, describe)
        self._operations = OperationSpans(tape.identity, tape.names, self._clock)
        self._activities = ActivitySpans(tape.identity, tape.names, self._clock, run_of)
        self._held_activities = HeldActivities()
        self._cutter = SegmentCutter(tape.identity.monotonic_ns)
        self._held: deque[StepSegment] = deque()
        self._held_spans = 0
        self._status: TapeStatus | None = None
        self._is_settled = False
        self._anchor: _Anchor | None = None
        self._stalled: dict[int, tuple[LinkTarget, ...]] = {}
        self._incident_links: tuple[LinkTarget, ...] = ()
        self._is_closed = False

    @property
    def state(self) -> SpansState | None:
        """The export position; None before the first export, so that the next reader starts at the beginning."""
        if not self._is_settled:
            return None
        return SpansState(self._cutter.state, self._sampler.state, self.dropped, self._is_closed)

    def resume(self, state: SpansState, ended: Iterable[Interval]) -> None:
        """Continue from another reader's state.

        Args:
            state: State of the other reader.
            ended: Operations and activities that ended before this call. Must include all whose spans the other reader
                has not passed on.
        """
        self._is_settled = True
        self._is_closed = state.is_closed
        self.dropped = state.dropped
        intervals = [*ended]
        self._cutter.resume(state.cutter, intervals)
        parents = {*state.cutter.pending, *(activity.number for activity in self._tape.open_activities())}
        activities = [interval for interval in intervals if isinstance(interval, Activity)]
        for activity in sorted(activities, key=lambda activity: activity.number):
            if activity.parent in parents:
                self._held_activities.hold_nested([activity])
                parents.add(activity.number)
        self._sampler.resume(state.sampler)

    @property
    def run_id(self) -> int:
        """The run id, or an id unique to this tape while it is unknown."""
        run_id = self._status.run_id if self._status else 0
        return run_id or lone_run_id(self._identity.nonce)

    @property
    def step(self) -> int:
        """The current step."""
        return self._cutter.step

    def consume(self, batch: Batch, status: TapeStatus, now_ns: int) -> None:
        """Process a batch, and pass on the segments that have ended.

        Args:
            batch: The batch of a poll.
            status: Status of the tape, read at about the time of the poll.
            now_ns: Monotonic time of the poll.
        """
        self._status = status
        self._clock.update(status)
        waited_ns = now_ns - self._identity.monotonic_ns
        self._is_settled |= status.run_id_state in _SETTLED or waited_ns >= SETTLE_NS
        # The poll may have stopped before the end of the tape: the batch is complete only up to its newest record.
        read_until_ns = now_ns
        self._cutter.ended(batch.ended)
        self._cutter.activities_ended(self._held_activities.hold_nested(batch.activities_ended))
        events = [*batch.entered, *batch.activities_entered, *batch.steps]
        for event in sorted(events, key=lambda event: event.number):
            if isinstance(event, StepMark):
                self._cutter.step_ended(event)
                read_until_ns = event.ended_ns
            else:
                self._cutter.entered(event)
                read_until_ns = event.entered_ns
        self._cutter.assume_step(status.step)
        self._cutter.pass_time(read_until_ns)
        self._pass_on()

    def keep(self, step: int) -> None:
        """Export `step` regardless of the sampler, because an incident began in it."""
        self._sampler.keep(step)

    def end_segment(self, now_ns: int, incident: LinkTarget | None = None) -> LinkTarget:
        """End the segment because a stall begins, so that the stall's spans have a parent.

        Does not wait for the ranks to agree on the run id: if rank 0 hangs from the beginning, they never do.

        Args:
            now_ns: Monotonic time.
            incident: The incident's trace, to which the anchor is linked.

        Returns:
            The segment's anchor, passed on as urgent; the last stall's anchor if no operation has ended since.
        """
        self._sampler.keep(self.step)
        self._is_settled = True
        self._pass_on()
        last = self._anchor
        if last and last.end is SegmentEnd.STALL and last.step == self.step and self._cutter.is_idle:
            return last.target
        self._incident_links = (incident,) if incident else ()
        self._cutter.cut(now_ns, SegmentEnd.STALL)
        self._pass_on()
        self._incident_links = ()
        assert self._anchor is not None  # the segment of a stall always counts as non-empty, and is always kept
        return self._anchor.target

    def mark_stalled(self, number: int, incident: LinkTarget | None = None) -> LinkTarget:
        """Mark an open operation as stalled, so that its span shows it and is always exported.

        Args:
            number: Number of its record.
            incident: The incident's trace, to which the span will be linked.

        Returns:
            Trace and span id of its span, if it ends in the current step.
        """
        self._stalled[number] = (incident,) if incident else self._stalled.get(number, ())
        span_id = operation_span_id(self._identity.nonce, number)
        return LinkTarget(trace_id_of_step(self.run_id, self.step), span_id)

    def close(self, now_ns: int) -> None:
        """Pass on all remaining and open intervals. The tape has ended, and its last batch has been consumed.

        Args:
            now_ns: Best known monotonic time of the tape's end, used as the end of open intervals.
        """
        if self._is_closed or self._status is None:
            return
        self._is_closed = True
        self._is_settled = True
        if self._status.state is not TapeState.FINISHED:
            self._sampler.keep(self.step)
        operations, activities = self._tape.open_operations(), self._tape.open_activities()
        end_ns = max([now_ns, *(interval.entered_ns for interval in (*operations, *activities))])
        self._cutter.ended(msgspec.structs.replace(operation, completed_ns=end_ns) for operation in operations)
        still_open = (msgspec.structs.replace(activity, completed_ns=end_ns) for activity in activities)
        self._cutter.activities_ended(self._held_activities.hold_nested(still_open))
        self._cutter.activities_ended(self._held_activities.orphans(self._cutter.state.pending))
        self._cutter.finish(end_ns)
        self._pass_on()

    def pause(self, now_ns: int) -> None:
        """Pass on all ended intervals, because reading may pause. Open intervals are left to the next reader."""
        self._cutter.cut(now_ns, SegmentEnd.CLOSE)
        self._pass_on()

    def _pass_on(self) -> None:
        """Pass on the cut segments, once the run id is settled."""
        for segment in self._cutter.take():
            self._held.append(segment)
            self._held_spans += _span_count(segment)
        while self._held and (self._is_settled or self._held_spans > MAX_HELD_SPANS):
            segment = self._held.popleft()
            self._held_spans -= _span_count(segment)
            if self._is_settled:
                self._emit(segment)
            else:
                self._drop_activities(segment)
                self.dropped += _span_count(segment)

    def _emit(self, segment: StepSegment) -> None:
        has_stalled = any(operation.number in self._stalled for operation in segment.operations)
        is_kept = self._sampler.is_kept(self.run_id, segment.step, segment.end_ns, _span_count(segment))
        if not (is_kept or has_stalled):
            self._drop_activities(segment)
            return
        anchor = self._anchors.span(segment, self.run_id, self._links_of(segment))
        children = [self._operation_span(operation, anchor) for operation in segment.operations]
        open_because = self._open_because()
        for activity in segment.activities:
            children += self._activities.spans(activity, anchor, self.run_id, open_because, self._held_activities)
        self._anchor = _Anchor(segment.step, segment.end, LinkTarget(anchor.trace_id, anchor.span_id))
        if segment.end is SegmentEnd.STALL:  # the stall's spans need only the anchor
            self._sink.emit([anchor], urgent=True)
            if children:
                self._sink.emit(children)
        else:
            self._sink.emit([anchor, *children])
        if self._on_emitted is not None:
            self._on_emitted(segment, anchor)

    def _drop_activities(self, segment: StepSegment) -> None:
        for activity in segment.activities:
            self._held_activities.drop(activity)

    def _links_of(self, segment: StepSegment) -> tuple[LinkTarget, ...]:
        """Return the links specific to a segment's anchor."""
        links = self._incident_links if segment.end is SegmentEnd.STALL else ()
        return (self._anchor.target, *links) if self._anchor and self._anchor.step == segment.step else links

    def _operation_span(self, operation: Operation, anchor: FinishedSpan) -> FinishedSpan:
        incident = self._stalled.pop(operation.number, None)
        open_because = "" if operation.how else self._open_because()
        return self._operations.span(operation, anchor, incident, open_because)

    def _open_because(self) -> str:
        """Return why an operation has no end, as a clause after "when"."""
        status = self._status
        if status is None or status.state is TapeState.RUNNING:
            return "the process was gone"
        if status.state is TapeState.FINISHED:
            return "the process ended"
        return f"the process failed with {self._tape.names.text(status.failure) or 'an exception'}"


def _span_count(segment: StepSegment) -> int:
    return len(segment.operations) + len(segment.activities) + 1
