"""Turns activities of the tape into finished spans, nested as the activities are."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import Final

from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue

from otel_torchdist.model.activity_kinds import CALL_SIDES, CHECKPOINT_OPERATIONS, TRAITS, Detail
from otel_torchdist.model.history import Activity
from otel_torchdist.model.ids import activity_span_id, anchor_span_id, trace_id_of_step
from otel_torchdist.model.kinds import ActivityKind, CallMode, How
from otel_torchdist.model.remote_calls import RemoteCall, Side
from otel_torchdist.model.reports.incident import LinkTarget
from otel_torchdist.tape.identity import TapeIdentity
from otel_torchdist.tape.names.reader import NamesReader
from otel_torchdist.tape.status import WallClock
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan
from otel_torchdist.telemetry.spans.operation import MIN_DURATION_NS

# Spans of remote procedure calls. Both sides know the step of the outermost caller, which determines the trace id, and
# the number of the parent's record, which determines the parent's span id. So no reader waits for another reader, and
# the callee's span may be sent before the caller's.

SYSTEM: Final = "torch"


def kind_of(activity: Activity) -> SpanKind:
    """Return the kind of an activity's span."""
    match CALL_SIDES.get(activity.kind) if activity.call is not None else None:
        case None:
            return SpanKind.INTERNAL
        case Side.CALLER:
            return SpanKind.CLIENT
        case Side.CALLEE:
            return SpanKind.SERVER


def parent_of(
    activity: Activity, call: RemoteCall, nonce: int, run_id: int, run_of: Callable[[int], int | None]
) -> LinkTarget | None:
    """Return the parent of a remote call's span; None for the anchor of its segment, as for other activities.

    Args:
        activity: The activity.
        call: Its remote call.
        nonce: Nonce of its tape.
        run_id: Its run.
        run_of: Returns the run id of the tape with a nonce; None if unknown. The caller may be in another run: a worker
            without a group forms a separate run.
    """
    is_caller = CALL_SIDES.get(activity.kind) is Side.CALLER
    if is_caller and call.caller_number:
        return LinkTarget(trace_id_of_step(run_id, call.caller_step), activity_span_id(nonce, call.caller_number))
    if is_caller:  # the call may have ended in a later step
        return LinkTarget(trace_id_of_step(run_id, activity.step), anchor_span_id(nonce, activity.step, 0))
    if not call.caller_nonce:
        return None
    run = run_of(call.caller_nonce) or run_id
    parent = activity_span_id(call.caller_nonce, call.caller_number)
    return LinkTarget(trace_id_of_step(run, call.caller_step), parent)


def attributes_of_call(call: RemoteCall, names: NamesReader) -> dict[str, AttributeValue]:
    """Return the attributes specific to spans of remote calls, except the method."""
    attributes: dict[str, AttributeValue] = {semconv.RPC_SYSTEM: SYSTEM}
    peer = names.text(call.worker_name)
    if peer:
        attributes[semconv.RPC_PEER] = peer
    if call.mode is not CallMode.UNKNOWN:
        attributes[semconv.RPC_MODE] = call.mode.name.lower()
    site = names.call_site(call.call_site)
    if site is not None:
        attributes[semconv.CODE_FUNCTION] = site.function
        attributes[semconv.CODE_FILE] = site.file
        attributes[semconv.CODE_LINE] = site.line
    return attributes


MAX_HELD: Final = 2_000
"""Upper bound on the activities that wait for their parents. A rank has a few; a forged tape may have any number."""


class HeldActivities:
    """Nested activities, held until their parents end: a span is never exported before its parent."""

    def __init__(self) -> None:
        self._held: dict[int, list[Activity]] = {}
        self._count = 0

    def hold_nested(self, ended: Iterable[Activity]) -> list[Activity]:
        """Hold back ended activities that have a parent. Return the activities without a parent."""
        return [activity for activity in ended if not self._hold(activity)]

    def _hold(self, activity: Activity) -> bool:
        # A parent has a lower number. On a tape that lapped the reader, the parent's record may be missing.
        if not 0 < activity.parent < activity.number or self._count >= MAX_HELD:
            return False
        self._held.setdefault(activity.parent, []).append(activity)
        self._count += 1
        return True

    def pop_children(self, activity: Activity) -> list[Activity]:
        """Remove and return the children of an activity."""
        children = self._held.pop(activity.number, [])
        self._count -= len(children)
        return children

    def drop(self, activity: Activity) -> None:
        """Remove all descendants of an activity that is not exported."""
        for inner in self.pop_children(activity):
            self.drop(inner)

    def orphans(self, pending: Container[int]) -> list[Activity]:
        """Remove and return the activities whose parents are neither held nor `pending`: their records were lost."""
        numbers = {activity.number for held in self._held.values() for activity in held}
        lost = [parent for parent in self._held if parent not in numbers and parent not in pending]
        orphans = [activity for parent in lost for activity in self._held.pop(parent)]
        self._count -= len(orphans)
        return orphans


class ActivitySpans:
    """Builds the spans of one tape's activities."""

    def __init__(
        self,
        identity: TapeIdentity,
        names: NamesReader,
        clock: WallClock,
        run_of: Callable[[int], int | None] = lambda _: None,
    ) -> None:
        """Look up names in `names`, convert times with `clock`, and find the runs of other tapes with `run_of`."""
        self._run_of = run_of
        self._identity = identity
        self._names = names
        self._clock = clock

    def spans(
        self, activity: Activity, anchor: FinishedSpan, run_id: int, open_because: str, held: HeldActivities
    ) -> Iterator[FinishedSpan]:
        """Yield the span of an activity, then the spans of its descendants. The arguments are as in `span`."""
        span = self.span(activity, anchor, run_id, open_because if activity.how is None else "")
        yield span
        for inner in held.pop_children(activity):
            yield from self.spans(inner, span, run_id, open_because, held)

    def span(self, activity: Activity, anchor: FinishedSpan, run_id: int, open_because: str) -> FinishedSpan:
        """Build the span of an activity that has ended, or was still open at the end of its tape.

        Args:
            activity: The activity, with `completed_ns`; `how` is None if it was still open.
            anchor: The span of its segment. It is the parent, unless the activity is a remote procedure call.
            run_id: The run.
            open_because: Reason for a missing end, as a clause after "when": `the process ended`.
        """
        detail = self._names.text(activity.detail) or ""
        if not detail and activity.call is not None:
            detail = semconv.OTEL_OTHER
        name, detail_attribute = _name_and_attribute(activity.kind, detail)
        failure = self._names.text(activity.failure) or semconv.OTEL_OTHER
        attributes: dict[str, AttributeValue] = {
            semconv.RANK: self._identity.rank,
            semconv.RUN: anchor.attributes[semconv.RUN],
            semconv.STEP: activity.step,
            semconv.COMPLETION: activity.how.name.lower() if activity.how else "unknown",
        }
        if detail:
            attributes[detail_attribute] = detail
        operation = CHECKPOINT_OPERATIONS.get(activity.kind)
        if operation is not None:
            attributes[semconv.CHECKPOINT_OPERATION] = operation
        storage = self._names.text(activity.storage)
        if storage:
            attributes[semconv.CHECKPOINT_STORAGE] = storage
        if activity.message_bytes and activity.how is How.CALL:  # otherwise the recorded size is only planned
            attributes[semconv.CHECKPOINT_SIZE] = activity.message_bytes
        if activity.files:
            attributes[semconv.CHECKPOINT_FILES] = activity.files
        parent = LinkTarget(anchor.trace_id, anchor.span_id)
        if activity.call is not None:
            attributes |= attributes_of_call(activity.call, self._names)
            nonce = self._identity.nonce
            parent = parent_of(activity, activity.call, nonce, run_id, self._run_of) or parent
        if activity.how is How.FAILED:
            attributes[semconv.ERROR_TYPE] = failure
        start_ns = self._clock.wall_ns(activity.entered_ns)
        end_ns = start_ns + (activity.completed_ns or activity.entered_ns) - activity.entered_ns
        return FinishedSpan(
            name=name,
            trace_id=parent.trace_id,
            span_id=activity_span_id(self._identity.nonce, activity.number),
            parent_id=parent.span_id,
            start_ns=start_ns,
            end_ns=max(end_ns, start_ns + MIN_DURATION_NS),
            attributes=attributes,
            error=_error(name, activity, failure, self._names.text(activity.explanation) or "", open_because),
            kind=kind_of(activity),
        )


def _name_and_attribute(kind: ActivityKind, detail: str) -> tuple[str, str]:
    """Return the name of the span, and the attribute for the activity's detail."""
    row = TRAITS[kind]
    match row.detail:
        case Detail.NONE:
            return row.title, ""
        case Detail.OPTIMIZER:
            return row.title, semconv.OPTIMIZER
        case Detail.DATASET:
            return row.title, semconv.DATASET
        case Detail.CHECKPOINT:
            return row.title, semconv.CHECKPOINT_ID
        case Detail.STAGE:
            return detail or row.title, semconv.CHECKPOINT_STAGE
        case Detail.FUNCTION:
            return detail, semconv.RPC_METHOD
        case Detail.WORKER:
            return row.title, semconv.RPC_WORKER


def _error(name: str, activity: Activity, failure: str, explanation: str, open_because: str) -> str | None:
    if activity.how is None:
        return f"{name} was still in progress when {open_because}"
    if activity.how is How.FAILED:
        return f"{name} raised {failure}: {explanation}" if explanation else f"{name} raised {failure}"
    if activity.how is How.ABANDONED and activity.call is None:  # a call's future may be dropped
        return f"{name} was left with an exception, at the end shown or before it"
    return None
