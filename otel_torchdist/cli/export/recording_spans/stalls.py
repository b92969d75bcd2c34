"""The stalls of a recording: a trace for each, of the same shape as for a running job, and markers on stalled calls.

For a running job the spans of a stall link to the steps in which the ranks hang. Here they link to the calls of the
recording: the ids of the recording and its ranks replace the ids of a run and its tapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
from opentelemetry.util.types import AttributeValue

from otel_torchdist.cli.export.recording_spans.recording import ImportedFindings, Judgment
from otel_torchdist.judge.stall.events import MarkerDue, Occasion, Ruling, VerdictGiven
from otel_torchdist.judge.stall.reporting.attributes import ruling_of
from otel_torchdist.judge.stall.reporting.spans import incident_spans, marker_span
from otel_torchdist.judge.verdict.rules import Wait
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.calls import UNREAD
from otel_torchdist.model.ids import imported_nonce
from otel_torchdist.model.reports.incident import Incident, LinkTarget, incident_name
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan

EPOCH: Final = 1
"""The epoch of all incidents: an import reports each stall once."""
_NOT_RECORDED: Final = (semconv.STEP, semconv.TAG)
_MAX_INTEGER: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Stall:
    """A verdict and its wording for spans.

    Attributes:
        verdict: The verdict, with lines of code.
    """

    verdict: Verdict
    ruling: Ruling

    @property
    def root(self) -> LinkTarget:
        """The root span of its trace."""
        return self.ruling.incident.root(EPOCH)


@dataclass(frozen=True, slots=True)
class Stalls:
    """All verdicts of a recording.

    Attributes:
        world: The ranks at the last moment, with the ids of their spans.
        stalls: One for each verdict, the most important first.
        threshold_ns: Age at which an open operation counts as stalled.
    """

    world: WorldSnapshot
    stalls: tuple[Stall, ...]
    threshold_ns: int

    def traces(self) -> list[list[FinishedSpan]]:
        """Return the trace of each stall, parents first."""
        return [self._trace(stall) for stall in self.stalls]

    def _trace(self, stall: Stall) -> list[FinishedSpan]:
        given = VerdictGiven(Occasion.OPENED, stall.ruling.incident, EPOCH, None, stall.verdict, self.world)
        root, *bars = (
            msgspec.structs.replace(span, attributes=recorded_attributes(span.attributes))
            for span in incident_spans(given)
        )
        return [msgspec.structs.replace(root, error=stall.ruling.text), *bars]

    def naming_rank(self, rank: int) -> Sequence[Stall]:
        """Return the stalls whose verdicts name a rank."""
        return [stall for stall in self.stalls if rank in stall.verdict.ranks]

    def marker(self, rank: int, number: int, bar: LinkTarget) -> FinishedSpan | None:
        """Return the span that marks an open call as stalled, below the bar of its rank; None if it is not stalled."""
        wait = self._wait(rank, number)
        if wait is None or not self.stalls or self.world.taken_ns - wait.since_ns < self.threshold_ns:
            return None
        in_operation = [stall for stall in self.stalls if stall.verdict.operation_id == wait.operation.operation_id]
        cause = (*in_operation, *self.stalls)[0]
        due = MarkerDue(wait, EPOCH, cause.ruling, self.world.taken_ns)
        return msgspec.structs.replace(marker_span(due, bar), links=(cause.root,))

    def _wait(self, rank: int, number: int) -> Wait | None:
        """Return the wait in a call; None for calls that are queued behind the call that waits."""
        view = self.world.ranks.get(rank)
        if view is None:
            return None
        calls = [(call, call.waiting_since_ns) for call in view.open if call.record.number == number]
        return next((Wait(view, call, since_ns) for call, since_ns in calls if since_ns is not None), None)


def stalls_of(findings: ImportedFindings, run_id: int, part_id: int) -> Stalls:
    """Put the verdicts of a recording into words.

    Args:
        findings: Verdicts on the recording.
        run_id: Id of the recording.
        part_id: Stands for the recording in ids of spans.
    """
    ranks = {
        rank: replace(view, run=part_id, nonce=imported_nonce(part_id, rank), step=0)
        for rank, view in findings.world.ranks.items()
    }
    incidents = [
        (judgment, Incident(run_id, f"{part_id:032x} {name_of(judgment.verdict)}")) for judgment in findings.judgments
    ]
    stalls = [_stall(judgment, incident, findings.world.taken_ns) for judgment, incident in incidents]
    return Stalls(replace(findings.world, ranks=ranks), tuple(stalls), findings.threshold_ns)


def _stall(judgment: Judgment, incident: Incident, now_ns: int) -> Stall:
    ruling = ruling_of(judgment.verdict, incident, EPOCH, now_ns)
    return Stall(judgment.verdict, replace(ruling, text=judgment.text))


def name_of(verdict: Verdict) -> str:
    """Return a name that distinguishes a verdict from all others on the same recording."""
    return f"{verdict.kind.value} {incident_name(verdict.operation_id)}"


def recorded_attributes(attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    """Drop attributes that dumps lack (the step, the tag, an unread reduce op) and values that OTLP cannot hold."""
    return {key: value for key, value in attributes.items() if key not in _NOT_RECORDED and not _is_unfit(key, value)}


def _is_unfit(key: str, value: AttributeValue) -> bool:
    """Return True for an unread reduce op, and for integers beyond 64 bits, which a corrupt dump may hold."""
    return (key, value) == (semconv.REDUCE_OP, UNREAD) or (isinstance(value, int) and value > _MAX_INTEGER)
