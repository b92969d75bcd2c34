"""Turns one activity of the tape into a finished span."""

from __future__ import annotations

from opentelemetry.util.types import AttributeValue

from otel_torchdist import semconv
from otel_torchdist.naming import activity_span_id
from otel_torchdist.tape.activities import Activity
from otel_torchdist.tape.layout import ActivityKind, How
from otel_torchdist.tape.names import NamesReader
from otel_torchdist.tape.reading.clock import WallClock
from otel_torchdist.tape.records import TapeIdentity
from otel_torchdist.telemetry.spans.model import FinishedSpan
from otel_torchdist.telemetry.spans.operation import MIN_DURATION_NS, UNKNOWN_ERROR


class ActivitySpans:
    """Makes the spans of one tape's activities."""

    def __init__(self, identity: TapeIdentity, names: NamesReader, clock: WallClock) -> None:
        """Look up names in `names`, and convert times with `clock`."""
        self._identity = identity
        self._names = names
        self._clock = clock

    def span(self, activity: Activity, anchor: FinishedSpan, open_because: str) -> FinishedSpan:
        """Build the span of an activity that has ended, or that was still open when its tape was over.

        Args:
            activity: Has `completed_ns`; `how` is None if it was still open.
            anchor: Its parent span.
            open_because: Why an activity without an end has none, as the end of a sentence.
        """
        name, detail_attribute = _shown_as(activity.kind)
        failure = self._names.text(activity.failure) or UNKNOWN_ERROR
        attributes: dict[str, AttributeValue] = {
            semconv.RANK: self._identity.rank,
            semconv.RUN: anchor.attributes[semconv.RUN],
            semconv.STEP: activity.step,
            semconv.COMPLETION: activity.how.name.lower() if activity.how else "unknown",
        }
        detail = self._names.text(activity.detail)
        if detail:
            attributes[detail_attribute] = detail
        if activity.how is How.FAILED:
            attributes[semconv.ERROR_TYPE] = failure
        start_ns = self._clock.wall_ns(activity.entered_ns)
        end_ns = start_ns + (activity.completed_ns or activity.entered_ns) - activity.entered_ns
        return FinishedSpan(
            name=name,
            trace_id=anchor.trace_id,
            span_id=activity_span_id(self._identity.nonce, activity.number),
            parent_id=anchor.span_id,
            start_ns=start_ns,
            end_ns=max(end_ns, start_ns + MIN_DURATION_NS),
            attributes=attributes,
            error=_error(name, activity, failure, open_because),
        )


def _shown_as(kind: ActivityKind) -> tuple[str, str]:
    """Return the name of the span, and the attribute that holds the activity's detail."""
    match kind:
        case ActivityKind.OPTIMIZER_STEP:
            return semconv.OPTIMIZER_STEP_SPAN, semconv.OPTIMIZER
        case ActivityKind.DATA_WAIT:
            return semconv.DATA_WAIT_SPAN, semconv.DATASET
        case ActivityKind.BACKWARD:
            return semconv.BACKWARD_SPAN, ""  # it has no detail


def _error(name: str, activity: Activity, failure: str, open_because: str) -> str | None:
    if activity.how is None:
        return f"{name} was still in progress when {open_because}"
    if activity.how is How.FAILED:
        return f"{name} raised {failure}"
    if activity.how is How.ABANDONED:
        return f"{name} was left with an exception, at the end shown or before it"
    return None
