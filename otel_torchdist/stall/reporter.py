"""Reports stalls as spans, as log events and in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from opentelemetry._logs import Logger, SeverityNumber
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from otel_torchdist import semconv
from otel_torchdist.naming import run_label
from otel_torchdist.stall import attributes
from otel_torchdist.stall.attributes import resolution
from otel_torchdist.stall.events import (
    Event,
    Finding,
    Incident,
    IncidentResolved,
    MarkerDue,
    MismatchFound,
    StragglerFound,
    VerdictGiven,
)
from otel_torchdist.stall.spans import (
    NoStepTraces,
    StepTraces,
    finding_span,
    incident_spans,
    marker_span,
    resolution_spans,
)
from otel_torchdist.telemetry.spans.model import FinishedSpan, SpanSink
from otel_torchdist.verdict.model import Outcome
from otel_torchdist.verdict.wording.sentence import sentence

_logger = logging.getLogger("otel_torchdist.stall")


class StallReporter:
    """Turns events into spans and logs."""

    def __init__(self, sink: SpanSink, events: Logger, traces: StepTraces | None = None) -> None:
        """Report to these receivers.

        Args:
            sink: Receives the spans, all of them urgent.
            events: Receives the log events.
            traces: Places markers in the traces of steps; without it, they are roots there.
        """
        self._sink = sink
        self._events = events
        self._traces = traces or NoStepTraces()

    def report(self, events: Iterable[Event]) -> None:
        """Report everything that one pass has found."""
        found = list(events)
        markers = [marker_span(event, self._traces) for event in found if isinstance(event, MarkerDue)]
        if markers:
            self._sink.emit(markers, urgent=True)
        for event in found:
            if isinstance(event, VerdictGiven):
                self._report_verdict(event)
            elif isinstance(event, IncidentResolved):
                self._report_end(event)
            elif isinstance(event, MismatchFound | StragglerFound):
                self._report_finding(event)

    def _report_verdict(self, event: VerdictGiven) -> None:
        spans = incident_spans(event)
        self._sink.emit(spans, urgent=True)
        verdict = event.verdict
        age_ns = event.world.taken_ns - verdict.since_ns
        text = sentence(verdict, age_ns / 1e9)
        _logger.warning("stall: %s (%s)", text, _where(event.incident))
        self._emit(semconv.STALL_EVENT, SeverityNumber.ERROR, text, event.incident, spans[0])

    def _report_end(self, event: IncidentResolved) -> None:
        spans = resolution_spans(event)
        self._sink.emit(spans, urgent=True)
        text = resolution(event.verdict, event.outcome, event.length_ns)
        _logger.warning("stall over: %s (%s)", text, _where(event.incident))
        is_well = event.outcome is Outcome.COMPLETED
        severity = SeverityNumber.INFO if is_well else SeverityNumber.ERROR
        self._emit(semconv.STALL_RESOLVED_EVENT, severity, text, event.incident, spans[0])

    def _report_finding(self, event: Finding) -> None:
        span = finding_span(event)
        self._sink.emit([span], urgent=True)
        text = span.error or ""
        _logger.warning("finding: %s (%s)", text, _where(event.incident))
        is_wrong = isinstance(event, MismatchFound)
        severity = SeverityNumber.ERROR if is_wrong else SeverityNumber.WARN
        self._emit(semconv.FINDING_EVENT, severity, text, event.incident, span)

    def _emit(self, name: str, severity: SeverityNumber, body: str, incident: Incident, root: FinishedSpan) -> None:
        context = SpanContext(root.trace_id, root.span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        found: attributes.Attributes = {**root.attributes, semconv.STALL_TRACE_ID: f"{incident.trace_id:032x}"}
        self._events.emit(
            timestamp=root.end_ns,
            observed_timestamp=root.end_ns,
            context=set_span_in_context(NonRecordingSpan(context)),
            severity_number=severity,
            severity_text=severity.name,
            body=body,
            attributes=found,
            event_name=name,
        )


def _where(incident: Incident) -> str:
    """The run as metrics label it, since an agent may read many, and the trace to look up in Jaeger."""
    return f"run {run_label(incident.run)}, trace {incident.trace_id:032x}"
