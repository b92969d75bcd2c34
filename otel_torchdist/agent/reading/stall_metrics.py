"""Shows stalls and findings in the metrics."""

from __future__ import annotations

from collections import Counter

from otel_torchdist.model.finding import Finding, FindingOver, PathLengths
from otel_torchdist.naming import compress_ranks
from otel_torchdist.stall.events import (
    Event,
    IncidentHandedOver,
    IncidentResolved,
    MarkerDue,
    StacksOverdue,
    StacksWanted,
    TimeoutShort,
    VerdictGiven,
)
from otel_torchdist.stall.findings.slow import PathMeasured
from otel_torchdist.stall.findings.stragglers import ArrivalsCompared, Lateness
from otel_torchdist.telemetry.metrics.labels import label_value
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.metrics.snapshots import ArrivalCounts, PathSnapshot, VerdictStatus


def show(event: Event, metrics: NodeMetrics) -> None:
    """Show a stall, a finding or a measurement, or remove what no longer holds."""
    match event:
        case VerdictGiven():
            metrics.set_stall(_status_of(event))
        case IncidentResolved() | IncidentHandedOver():
            metrics.clear_stall(event.incident.run)
        case Finding():
            metrics.add_finding(event)
        case FindingOver():
            metrics.drop_finding(event)
        case ArrivalsCompared():
            for one in event.lateness:
                metrics.add_arrivals(event.run, one.group, _counts_of(one))
        case PathMeasured():
            metrics.set_path(event.run, _path_of(event.lengths))
        case MarkerDue() | TimeoutShort() | StacksWanted() | StacksOverdue():
            pass


def _status_of(event: VerdictGiven) -> VerdictStatus:
    verdict = event.verdict
    return VerdictStatus(
        run_id=event.incident.run,
        group_key=verdict.operation_id.channel.group,
        operation=verdict.operation,
        verdict=verdict.kind.value,
        ranks=tuple(sorted(verdict.ranks)),
        coverage=f"{verdict.reporting}/{verdict.members}",
        trace_id=event.incident.trace_id,
    )


def _counts_of(lateness: Lateness) -> ArrivalCounts:
    late_s = {rank: late_ns / 1e9 for rank, late_ns in lateness.late_ns.items()}
    return ArrivalCounts(lateness.calls, lateness.waited_ns / 1e9, Counter(lateness.last), late_s)


def _path_of(lengths: PathLengths) -> PathSnapshot:
    gains: dict[tuple[str, str, str], float] = {}
    for gain in lengths.gains:  # the greatest comes first; two lines of one rank may differ only in their place
        gains.setdefault((gain.cause, compress_ranks(gain.ranks), label_value(gain.operation)), gain.seconds)
    return PathSnapshot(lengths.kinds, lengths.ranks, gains)
