"""Reports stalls as spans, log events and log records."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime
from typing import Protocol

from opentelemetry._logs import Logger, SeverityNumber
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from otel_torchdist.environment_variables import (
    OTEL_PYTHON_TORCHDIST_ON_STALL_GRACE,
    OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT,
)
from otel_torchdist.judge.stall.events import (
    Event,
    IncidentHandedOver,
    IncidentResolved,
    MarkerDue,
    Occasion,
    RecordingSwitchedOff,
    StacksOverdue,
    StacksWanted,
    TimeoutShort,
    VerdictGiven,
)
from otel_torchdist.judge.stall.findings.slow import PathMeasured
from otel_torchdist.judge.stall.findings.stragglers import ArrivalsCompared
from otel_torchdist.judge.stall.reporting.attributes import Announcer, resolution_of
from otel_torchdist.judge.stall.reporting.spans import finding_span, incident_spans, marker_span, resolution_spans
from otel_torchdist.judge.verdict.verdict import Outcome
from otel_torchdist.judge.verdict.wording.ends import span_of_time
from otel_torchdist.judge.verdict.wording.sentence import sentence
from otel_torchdist.model.ids import run_label
from otel_torchdist.model.reports.finding import Finding, FindingOver, Severity
from otel_torchdist.model.reports.incident import Incident, LinkTarget
from otel_torchdist.system.this_process.stderr_logging import ANNOUNCED, goes_to_stderr_only, logged_as
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan, SpanSink

_logger = logging.getLogger("otel_torchdist.judge.stall")


class StepTraces(Protocol):
    """Access to the spans of steps, which another component creates."""

    def cut_for_stall(self, nonce: int, number: int, now_ns: int, incident: LinkTarget) -> LinkTarget | None:
        """End the current segment of a rank because of a stall, so that a marker can become its child.

        Args:
            nonce: Tape of the rank.
            number: Number of the stalled operation.
            now_ns: Monotonic time.
            incident: The root of the incident.

        Returns:
            The segment's anchor, already emitted; None if another process creates the rank's spans.
        """
        ...


class StallReporter:
    """Turns events into spans and logs."""

    def __init__(
        self,
        sink: SpanSink,
        events: Logger,
        traces: StepTraces,
        announcer: Announcer | None = None,
        docs_url: str = "",
    ) -> None:
        """Report to these receivers.

        Args:
            sink: Receives the spans, all of them urgent.
            events: Receives the log events.
            traces: Places markers in the traces of steps.
            announcer: Announces the first verdict on each incident; None for no announcements.
            docs_url: Address of the pages on verdicts and findings, which log lines link to; '' for no links.
        """
        self._docs_url = docs_url
        self._announcer = announcer
        self._sink = sink
        self._events = events
        self._traces = traces

    def report(self, events: Iterable[Event]) -> None:
        """Report all events of one pass."""
        ordered = list(events)
        self._report_markers([event for event in ordered if isinstance(event, MarkerDue)])
        for event in ordered:
            match event:
                case VerdictGiven():
                    self._report_verdict(event)
                case IncidentResolved():
                    self._report_end(event)
                case Finding():
                    self._report_finding(event)
                case TimeoutShort():
                    _warn_of_timeout(event)
                case RecordingSwitchedOff():
                    _say_switched_off(event)
                case MarkerDue() | IncidentHandedOver() | FindingOver():
                    pass
                case StacksWanted() | StacksOverdue() | ArrivalsCompared() | PathMeasured():
                    pass

    def _report_markers(self, events: Iterable[MarkerDue]) -> None:
        spans: list[FinishedSpan] = []
        for event in events:
            view, ruling, number = event.wait.view, event.ruling, event.wait.operation.record.number
            root = ruling.incident.root(ruling.epoch)
            anchor = self._traces.cut_for_stall(view.nonce, number, event.taken_ns, root)
            spans.append(marker_span(event, anchor))
        if spans:
            self._sink.emit(spans, urgent=True)

    def _report_verdict(self, event: VerdictGiven) -> None:
        spans = incident_spans(event)
        self._sink.emit(spans, urgent=True)
        verdict = event.verdict
        age_ns = verdict.age_ns(event.world.taken_ns)
        text = sentence(verdict, age_ns / 1e9)
        is_announced = self._announce(event, text)
        if not (is_announced and goes_to_stderr_only(_logger)):
            extra = logged_as(ANNOUNCED) if is_announced else None
            where = f"{_where(event.incident)}{self._link(f'verdicts/{verdict.kind.value}')}"
            _logger.warning("stall: %s (%s)", text, where, extra=extra)
        self._emit(semconv.STALL_EVENT, SeverityNumber.ERROR, text, event.incident, spans[0])

    def _announce(self, event: VerdictGiven, text: str) -> bool:
        """Announce the first verdict on an incident, unless another agent has announced it."""
        is_first = event.occasion is Occasion.OPENED and event.predecessor is None
        return is_first and self._announcer is not None and self._announcer.announce(event, text)

    def _report_end(self, event: IncidentResolved) -> None:
        spans = resolution_spans(event)
        self._sink.emit(spans, urgent=True)
        text = resolution_of(event)
        _logger.warning("stall over: %s (%s)", text, _where(event.incident))
        is_well = event.outcome is Outcome.COMPLETED
        severity = SeverityNumber.INFO if is_well else SeverityNumber.ERROR
        self._emit(semconv.STALL_RESOLVED_EVENT, severity, text, event.incident, spans[0])

    def _report_finding(self, finding: Finding) -> None:
        span = finding_span(finding)
        self._sink.emit([span], urgent=True)
        where = f"{_where(finding.incident)}{self._link(f'findings#{finding.kind.value}')}"
        _logger.warning("finding: %s (%s)", finding.sentence, where)
        self._emit(semconv.FINDING_EVENT, _number_of(finding.severity), finding.sentence, finding.incident, span)

    def _link(self, page: str) -> str:
        return f", see {self._docs_url}/{page}" if self._docs_url else ""

    def _emit(self, name: str, severity: SeverityNumber, body: str, incident: Incident, root: FinishedSpan) -> None:
        context = SpanContext(root.trace_id, root.span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        attributes = {**root.attributes, semconv.STALL_TRACE_ID: f"{incident.trace_id:032x}"}
        self._events.emit(
            timestamp=root.end_ns,
            observed_timestamp=root.end_ns,
            context=set_span_in_context(NonRecordingSpan(context)),
            severity_number=severity,
            severity_text=severity.name,
            body=body,
            attributes=attributes,
            event_name=name,
        )


def _number_of(severity: Severity) -> SeverityNumber:
    match severity:
        case Severity.WARNING:
            return SeverityNumber.WARN
        case Severity.ERROR:
            return SeverityNumber.ERROR


def _warn_of_timeout(event: TimeoutShort) -> None:
    _logger.warning(
        "the timeout of %s is %s: %s may end a stall there before it has been reported and acted on, which takes %s "
        "(%s, and %s if actions are set); a longer timeout, or a shorter threshold, leaves time for that (run %s)",
        event.group.label, span_of_time(event.group.name.timeout_ms / 1e3), event.backend,
        span_of_time(event.needed_ns / 1e9), OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT, OTEL_PYTHON_TORCHDIST_ON_STALL_GRACE,
        run_label(event.run),
    )  # fmt: skip


def _say_switched_off(event: RecordingSwitchedOff) -> None:
    _logger.warning(
        "recording was switched off at %s: later operations are unknown, and no verdict is given on run %s",
        datetime.fromtimestamp(event.at_wall_ns / 1e9).astimezone().isoformat(timespec="seconds"), run_label(event.run),
    )  # fmt: skip


def _where(incident: Incident) -> str:
    """Return the run as in metric labels, since an agent may read several, and the trace to look up in Jaeger."""
    return f"run {run_label(incident.run)}, trace {incident.trace_id:032x}"
