"""Turns one activity of the tape into a finished span."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry.util.types import AttributeValue

from otel_torchdist import semconv
from otel_torchdist.naming import activity_span_id
from otel_torchdist.tape.activities import Activity
from otel_torchdist.tape.layout import ActivityKind, How
from otel_torchdist.tape.names import NamesReader
from otel_torchdist.tape.reading.clock import WallClock
from otel_torchdist.tape.records import TapeIdentity
from otel_torchdist.telemetry.spans.model import FinishedSpan, LinkTarget
from otel_torchdist.telemetry.spans.operation import MIN_DURATION_NS, UNKNOWN_ERROR
from otel_torchdist.telemetry.spans.remote_calls import attributes_of, kind_of, parent_of


class ActivitySpans:
    """Makes the spans of one tape's activities."""

    def __init__(
        self,
        identity: TapeIdentity,
        names: NamesReader,
        clock: WallClock,
        run_of: Callable[[int], int | None] = lambda _: None,
    ) -> None:
        """Look up names in `names`, convert times with `clock`, and find the runs of other tapes by their nonce."""
        self._run_of = run_of
        self._identity = identity
        self._names = names
        self._clock = clock

    def span(self, activity: Activity, anchor: FinishedSpan, run_id: int, open_because: str) -> FinishedSpan:
        """Build the span of an activity that has ended, or that was still open when its tape was over.

        Args:
            activity: Has `completed_ns`; `how` is None if it was still open.
            anchor: The span of its segment; its parent, unless it is a remote procedure call.
            run_id: The run.
            open_because: Why an activity without an end has none, as the end of a sentence.
        """
        detail = self._names.text(activity.detail)
        name, detail_attribute = _shown_as(activity.kind, detail or semconv.OTHER_METHOD)
        failure = self._names.text(activity.failure) or UNKNOWN_ERROR
        attributes: dict[str, AttributeValue] = {
            semconv.RANK: self._identity.rank,
            semconv.RUN: anchor.attributes[semconv.RUN],
            semconv.STEP: activity.step,
            semconv.COMPLETION: activity.how.name.lower() if activity.how else "unknown",
        }
        if detail:
            attributes[detail_attribute] = detail
        parent = LinkTarget(anchor.trace_id, anchor.span_id)
        if activity.call is not None:
            attributes |= attributes_of(activity.call, self._names)
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
            error=_error(name, activity, failure, open_because),
            kind=kind_of(activity),
        )


def _shown_as(kind: ActivityKind, detail: str) -> tuple[str, str]:
    """Return the name of the span, and the attribute that holds the activity's detail."""
    match kind:
        case ActivityKind.OPTIMIZER_STEP:
            return semconv.OPTIMIZER_STEP_SPAN, semconv.OPTIMIZER
        case ActivityKind.RPC_CLIENT | ActivityKind.RPC_SERVER:
            return detail, semconv.RPC_METHOD
        case ActivityKind.RPC_JOIN:
            return semconv.RPC_JOIN_SPAN, semconv.RPC_WORKER
        case ActivityKind.RPC_SHUTDOWN:
            return semconv.RPC_SHUTDOWN_SPAN, semconv.RPC_WORKER


def _error(name: str, activity: Activity, failure: str, open_because: str) -> str | None:
    if activity.how is None:
        return f"{name} was still in progress when {open_because}"
    if activity.how is How.FAILED:
        return f"{name} raised {failure}"
    if activity.how is How.ABANDONED and activity.call is None:  # a call's future may be dropped
        return f"{name} was left with an exception, at the end shown or before it"
    return None
