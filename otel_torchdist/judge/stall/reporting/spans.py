"""The spans of a stall: markers in the trace of the step, and a trace for the incident.

Events of the detector become spans that have already ended. Each span has a unique id, and is a root span or the child
of an earlier span.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from otel_torchdist.judge.stall.events import IncidentResolved, MarkerDue, VerdictGiven
from otel_torchdist.judge.stall.reporting import attributes
from otel_torchdist.judge.stall.reporting.attributes import resolution_of
from otel_torchdist.judge.verdict.roll_call import Standing
from otel_torchdist.judge.verdict.verdict import Outcome, Verdict
from otel_torchdist.judge.verdict.wording.calls import describe_operation
from otel_torchdist.judge.verdict.wording.places import describe_place
from otel_torchdist.judge.verdict.wording.sentence import sentence
from otel_torchdist.judge.world.places import PlaceSource, RankPlace
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.ids import lone_run_id, marker_span_id, operation_span_id, trace_id_of_step
from otel_torchdist.model.reports.finding import Finding
from otel_torchdist.model.reports.incident import Incident, LinkTarget
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.model.text import seconds
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan

MAX_BARS: Final = 64
"""Maximum number of member ranks with a separate bar. Named ranks come first."""
_SHORTEST_NS: Final = 1_000

_ORDER: Final = tuple(Standing)
"""Missing ranks come before waiting ones; see the enum."""


def marker_span(event: MarkerDue, anchor: LinkTarget | None) -> FinishedSpan:
    """Return the span of an operation in progress, from its start to now, linked to its future final span.

    Args:
        event: The operation.
        anchor: Its parent; None for a root in the trace of its step.
    """
    view, operation, now_ns = event.wait.view, event.wait.operation, event.taken_ns
    number = operation.record.number
    ruling = event.ruling
    root = ruling.incident.root(ruling.epoch)
    run = view.run or lone_run_id(view.nonce)
    trace_id = anchor.trace_id if anchor is not None else trace_id_of_step(run, view.step)
    age_s = (now_ns - event.wait.since_ns) / 1e9
    verdict = {**ruling.attributes, semconv.STALL_AGE: age_s}
    return FinishedSpan(
        name=semconv.IN_PROGRESS_SPAN.format(operation=operation.name),
        trace_id=trace_id,
        span_id=marker_span_id(view.nonce, number, event.nth),
        parent_id=anchor.span_id if anchor is not None else None,
        start_ns=_wall(view, operation.record.entered_ns),
        end_ns=_wall(view, max(now_ns, operation.record.entered_ns + _SHORTEST_NS)),
        attributes=verdict | attributes.of_operation(view, operation),
        error=_marker_text(event, age_s),
        links=(LinkTarget(trace_id, operation_span_id(view.nonce, number)), root),
    )


def _marker_text(event: MarkerDue, age_s: float) -> str:
    operation, ruling = event.wait.operation, event.ruling
    if operation.operation_id == ruling.operation_id:
        return ruling.text
    operation_text = describe_operation(operation.name, operation.group, operation.operation_id, operation.label)
    return f"{operation_text} has been blocked for {seconds(age_s)}; the cause is elsewhere: {ruling.text}"


def incident_spans(event: VerdictGiven) -> list[FinishedSpan]:
    """Return one epoch of an incident: a root, and a bar for each member rank, missing ranks first."""
    before = event.predecessor if not event.epoch_before else event.incident.root(event.epoch_before)
    return _Epoch(event.incident, event.epoch, before, event.verdict, event.world).spans()


def resolution_spans(event: IncidentResolved) -> list[FinishedSpan]:
    """Return the final root of an incident, which covers the whole stall."""
    before = event.incident.root(event.epoch_before) if event.epoch_before else None
    return [_Epoch(event.incident, event.epoch, before, event.verdict, event.world).closed(event)]


def finding_span(finding: Finding) -> FinishedSpan:
    """Return the single span of a finding without a stall, in a separate trace."""
    target = finding.incident.root(1)
    view = finding.world.in_order[0]
    now_ns = _wall(view, finding.world.taken_ns)
    finding_attributes = attributes.of_finding(finding)
    operation = finding_attributes.get(semconv.OPERATION, semconv.ALL_OPERATIONS)
    return FinishedSpan(
        name=semconv.FINDING_SPAN.format(operation=operation, verdict=finding.kind.value),
        trace_id=target.trace_id,
        span_id=target.span_id,
        parent_id=None,
        start_ns=now_ns - _SHORTEST_NS,
        end_ns=now_ns,
        attributes=finding_attributes,
        error=finding.sentence,
    )


@dataclass(frozen=True, slots=True)
class _Epoch:
    """One report on an incident."""

    incident: Incident
    number: int
    before: LinkTarget | None
    verdict: Verdict
    world: WorldSnapshot

    def spans(self) -> list[FinishedSpan]:
        age_ns = self.verdict.age_ns(self.world.taken_ns)
        root = self._root(age_ns, sentence(self.verdict, age_ns / 1e9))
        standings = self.verdict.roll.standings
        named = self.verdict.ranks
        order = sorted(standings, key=lambda rank: (rank not in named, _ORDER.index(standings[rank]), rank))
        bars = [self._bar(root, rank, standings[rank]) for rank in order[:MAX_BARS]]
        rest = self._rest(root, len(self.verdict.roll.members) - len(bars))
        return [root, *bars, *rest]

    def closed(self, event: IncidentResolved) -> FinishedSpan:
        completed = event.outcome is Outcome.COMPLETED
        error = None if completed else resolution_of(event)
        root = self._root(event.length_ns, error)
        return msgspec.structs.replace(root, attributes={**root.attributes, semconv.STALL_RESOLVED: completed})

    def _root(self, age_ns: int, error: str | None) -> FinishedSpan:
        verdict = self.verdict
        first = min(verdict.roll.waits, key=lambda rank: verdict.roll.waits[rank].record.arrived_ns)
        view = self.world.ranks.get(first) or next(iter(self.world.ranks.values()))
        start_ns = _wall(view, verdict.since_ns)
        name = semconv.STALL_SPAN.format(operation=verdict.operation, verdict=verdict.kind.value)
        target = self.incident.root(self.number)
        before = () if self.before is None else (self.before,)
        root_attributes = attributes.of_verdict(verdict, self.incident.run, age_ns / 1e9)
        root_attributes[semconv.STALL_EPOCH] = self.number
        return FinishedSpan(
            name=name,
            trace_id=target.trace_id,
            span_id=target.span_id,
            parent_id=None,
            start_ns=start_ns,
            end_ns=max(_wall(view, verdict.since_ns + age_ns), start_ns + _SHORTEST_NS),
            attributes=root_attributes,
            error=error,
            links=(*before, self._final_span(view, verdict.roll.waits[first])),
        )

    def _bar(self, root: FinishedSpan, rank: int, standing: Standing) -> FinishedSpan:
        view, operation = self.world.ranks[rank], self.verdict.roll.waits.get(rank)
        place = self.verdict.places.get(rank, RankPlace(PlaceSource.NOTHING, None))
        bar_attributes: attributes.Attributes = {semconv.STALLED: True, semconv.RANK: rank, semconv.STEP: view.step}
        if operation is not None:
            bar_attributes |= attributes.of_operation(view, operation)
        bar_attributes |= attributes.of_place(place)
        if rank in self.verdict.failures:
            bar_attributes[semconv.ERROR_TYPE] = self.verdict.failures[rank]
        named = rank in self.verdict.ranks
        start_ns = root.start_ns
        if operation is not None:
            start_ns = min(max(_wall(view, operation.record.arrived_ns), start_ns), root.end_ns - _SHORTEST_NS)
        return FinishedSpan(
            name=semconv.STALL_RANK_SPAN.format(rank=rank, state=_state(standing, named)),
            trace_id=root.trace_id,
            span_id=self.incident.span_id(self.number, f"rank {rank}"),
            parent_id=root.span_id,
            start_ns=start_ns,
            end_ns=root.end_ns,
            attributes=bar_attributes,
            error=(describe_place(place, f"rank {rank}") or standing.value) if named else None,
            links=() if operation is None else (self._final_span(view, operation),),
        )

    def _rest(self, root: FinishedSpan, count: int) -> list[FinishedSpan]:
        """Return one bar for all members without a separate bar, most of them on other nodes."""
        if count <= 0:
            return []
        return [
            FinishedSpan(
                name=semconv.STALL_REST_SPAN.format(count=count),
                trace_id=root.trace_id,
                span_id=self.incident.span_id(self.number, "rest"),
                parent_id=root.span_id,
                start_ns=root.start_ns,
                end_ns=root.end_ns,
                attributes={semconv.STALLED: True},
            )
        ]

    def _final_span(self, view: RankView, operation: OperationView) -> LinkTarget:
        run = view.run or lone_run_id(view.nonce)
        return LinkTarget(trace_id_of_step(run, view.step), operation_span_id(view.nonce, operation.record.number))


def _state(standing: Standing, is_named: bool) -> str:
    """Return the word for a rank's state. A rank that died as a consequence differs from the first to die."""
    return semconv.FOLLOWED if standing is Standing.DEAD and not is_named else standing.value


def _wall(view: RankView, monotonic_ns: int) -> int:
    return monotonic_ns + view.wall_offset_ns
