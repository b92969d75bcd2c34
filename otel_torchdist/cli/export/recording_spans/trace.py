"""The trace of a recording: a root, a bar for each rank, and its calls beneath.

The spans contain nothing random, and neither the host nor the time of the import. Importing the same files again makes
identical spans, and Jaeger shows only one of two identical spans.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
from opentelemetry.util.types import AttributeValue

from otel_torchdist.cli.export.recording_spans.recording import RecordedRank, Recording
from otel_torchdist.cli.export.recording_spans.stalls import Stalls, name_of, recorded_attributes, stalls_of
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.ids import (
    anchor_span_id,
    imported_nonce,
    imported_part_id,
    operation_span_id,
    run_label,
    trace_id_of_step,
)
from otel_torchdist.model.kinds import How
from otel_torchdist.model.reports.incident import LinkTarget
from otel_torchdist.model.text import compress_ranks
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan
from otel_torchdist.telemetry.spans.operation import MIN_DURATION_NS, attributes_of_names, attributes_of_record
from otel_torchdist.telemetry.spans.segments import MAX_GROUPS

CLOCK: Final = "each host's own"
"""Dumps have the wall-clock times of their hosts, which are not compared."""

Attributes = dict[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class Traces:
    """The spans of a recording.

    Attributes:
        run_id: 128 bits, the same for every import of the same calls.
        calls: The trace with the calls, parents first.
        stalls: A trace for each stall, parents first.
    """

    run_id: int
    calls: tuple[FinishedSpan, ...]
    stalls: tuple[tuple[FinishedSpan, ...], ...]

    @property
    def spans(self) -> tuple[FinishedSpan, ...]:
        """All spans. The spans of stalls come first: they matter most if sending is interrupted."""
        return (*(span for stall in self.stalls for span in stall), *self.calls)


def traces_of(recording: Recording) -> Traces:
    """Build the spans of a recording."""
    run_id = recording.run_id
    part_id = imported_part_id(run_id, _part(recording))
    stalls = stalls_of(recording.findings, run_id, part_id)
    calls = _Calls(recording, stalls, run_label(run_id), part_id).spans()
    return Traces(run_id, tuple(calls), tuple(tuple(trace) for trace in stalls.traces()))


def _part(recording: Recording) -> str:
    """Describe everything that affects spans besides the calls: one id must never stand for two different spans."""
    findings, choice = recording.findings, recording.choice
    ranks = compress_ranks(choice.ranks, max_text=1 << 20)
    verdicts = [(name_of(judgment.verdict), judgment.text) for judgment in findings.judgments]
    inputs = f"{findings.world.taken_ns}, {recording.world_size}, {findings.provenance}, {verdicts}"
    return f"{choice.last} of {ranks}, {findings.threshold_ns}, {inputs}"


@dataclass(frozen=True, slots=True)
class _Calls:
    """Builds the trace with the calls of a recording."""

    recording: Recording
    stalls: Stalls
    run: str
    part_id: int

    def spans(self) -> list[FinishedSpan]:
        ranks = [self._rank_spans(rank) for rank in self.recording.chosen]
        root = self._root_span([span for spans in ranks for span in spans])
        return [root, *(_stretched(root, bar) for bar, *_ in ranks), *(call for _, *calls in ranks for call in calls)]

    @property
    def _root_id(self) -> LinkTarget:
        return LinkTarget(trace_id_of_step(self.part_id, 0), anchor_span_id(self.part_id, 0, 0))

    def _root_span(self, descendants: list[FinishedSpan]) -> FinishedSpan:
        now_ns = self.recording.findings.world.taken_ns + self.recording.ranks[0].wall_offset_ns
        start_ns = min((span.start_ns for span in descendants if span.start_ns), default=max(now_ns, 1))
        return FinishedSpan(
            name=semconv.IMPORT_SPAN.format(source=self.recording.findings.provenance.source),
            trace_id=self._root_id.trace_id,
            span_id=self._root_id.span_id,
            parent_id=None,
            start_ns=start_ns,
            end_ns=max([start_ns + MIN_DURATION_NS, *(span.end_ns for span in descendants)]),
            attributes=self._root_attributes(),
            error=self.stalls.stalls[0].ruling.text if self.stalls.stalls else None,
            links=tuple(stall.root for stall in self.stalls.stalls),
        )

    def _root_attributes(self) -> Attributes:
        provenance, ranks = self.recording.findings.provenance, self.recording.ranks
        attributes: Attributes = {
            semconv.RUN: self.run,
            semconv.IMPORT_FILES: provenance.files,
            semconv.IMPORT_RANKS: compress_ranks(rank.rank for rank in ranks),
            semconv.IMPORT_CALLS: self.recording.calls,
            semconv.IMPORT_OMITTED: self.recording.calls - sum(len(rank.operations) for rank in ranks),
            semconv.IMPORT_CLOCK: CLOCK,
        }
        optional: Attributes = {
            semconv.WORLD_SIZE: self.recording.world_size,
            semconv.IMPORT_FORMATS: list(provenance.formats),
            semconv.IMPORT_LIBRARIES: list(provenance.libraries),
            semconv.IMPORT_MISSING_RANKS: compress_ranks(provenance.missing),
        }
        if self.stalls.stalls:
            first = self.stalls.stalls[0].verdict
            attributes |= {semconv.STALLED: True, semconv.VERDICT: first.kind.value}
            optional[semconv.VERDICT_RANKS] = compress_ranks(first.ranks)
        return attributes | {key: value for key, value in optional.items() if value}

    def _rank_spans(self, rank: RecordedRank) -> list[FinishedSpan]:
        """Build the bar of a rank and the calls beneath."""
        bar = LinkTarget(self._root_id.trace_id, anchor_span_id(imported_nonce(self.part_id, rank.rank), 0, 0))
        calls = [self._call_span(rank, operation, bar) for operation in rank.operations]
        stalls = self.stalls.naming_rank(rank.rank)
        attributes = self._rank_attributes(rank)
        if stalls:
            attributes |= {semconv.STALLED: True, semconv.VERDICT: stalls[0].verdict.kind.value}
        span = FinishedSpan(
            name=semconv.IMPORT_RANK_SPAN.format(rank=rank.rank),
            trace_id=bar.trace_id,
            span_id=bar.span_id,
            parent_id=self._root_id.span_id,
            start_ns=min((call.start_ns for call in calls), default=0),
            end_ns=max((call.end_ns for call in calls), default=0),
            attributes=attributes,
            error=stalls[0].ruling.text if stalls else None,
            links=tuple(stall.root for stall in stalls),
        )
        return [span, *calls]

    def _rank_attributes(self, rank: RecordedRank) -> Attributes:
        attributes: Attributes = {
            semconv.RANK: rank.rank,
            semconv.RUN: self.run,
            semconv.IMPORT_CALLS: rank.calls,
            semconv.IMPORT_OMITTED: rank.omitted,
        }
        optional: Attributes = {
            semconv.IMPORT_OVERWRITTEN: rank.lost,
            semconv.WORLD_SIZE: rank.world_size,
            semconv.HOST_NAME: rank.host,
            semconv.GROUP_RANKS: _groups(rank),
        }
        return attributes | {key: value for key, value in optional.items() if value}

    def _call_span(self, rank: RecordedRank, operation: OperationView, bar: LinkTarget) -> FinishedSpan:
        record = operation.record
        attributes = {semconv.RANK: rank.rank, semconv.RUN: self.run} | _of_operation(operation)
        start_ns = record.entered_ns + rank.wall_offset_ns
        end_ns = (record.completed_ns or self.recording.findings.world.taken_ns) + rank.wall_offset_ns
        span = FinishedSpan(
            name=semconv.IN_PROGRESS_SPAN.format(operation=operation.name) if record.is_open else operation.name,
            trace_id=bar.trace_id,
            span_id=operation_span_id(imported_nonce(self.part_id, rank.rank), record.number),
            parent_id=bar.span_id,
            start_ns=start_ns,
            end_ns=max(end_ns, start_ns + MIN_DURATION_NS),
            attributes=attributes,
            error=f"{operation.name} raised {attributes[semconv.ERROR_TYPE]}" if record.how is How.FAILED else None,
        )
        marker = self.stalls.marker(rank.rank, record.number, bar) if record.is_open else None
        if marker is None:
            return span
        marker_attributes = recorded_attributes(marker.attributes)
        return msgspec.structs.replace(
            span, attributes=marker_attributes | attributes, error=marker.error, links=marker.links
        )


def _stretched(root: FinishedSpan, bar: FinishedSpan) -> FinishedSpan:
    """Return the bar of a rank; without calls, it covers the whole trace."""
    return bar if bar.end_ns else msgspec.structs.replace(bar, start_ns=root.start_ns, end_ns=root.end_ns)


def _of_operation(operation: OperationView) -> Attributes:
    group = operation.group.name if operation.group is not None else None
    attributes = attributes_of_names(operation.signature, group, operation.call_site, operation.label)
    attributes |= attributes_of_record(operation.record)
    attributes[semconv.OPERATION] = operation.name
    if operation.record.how is How.FAILED:
        attributes[semconv.ERROR_TYPE] = operation.failure or semconv.OTEL_OTHER
    return recorded_attributes(attributes)


def _groups(rank: RecordedRank) -> list[str]:
    """Describe the groups that a rank has used by their members."""
    groups = {operation.group.key: operation.group for operation in rank.operations if operation.group is not None}
    return sorted(f"{key}: {compress_ranks(group.members)}" for key, group in groups.items())[:MAX_GROUPS]
