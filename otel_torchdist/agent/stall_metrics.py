"""Shows findings that are not stalls in the metrics."""

from __future__ import annotations

from collections import Counter

from otel_torchdist import semconv
from otel_torchdist.stall.events import ArrivalsCompared, Event, MismatchFound, StragglerFound, StragglerGone
from otel_torchdist.telemetry.metrics.node import FindingStatus, NodeMetrics
from otel_torchdist.telemetry.metrics.snapshots import ArrivalCounts


def show_finding(event: Event, metrics: NodeMetrics) -> None:
    """Show a finding, or remove one that no longer holds; ignores other events."""
    if isinstance(event, MismatchFound):
        found = event.mismatch
        run, trace_id = event.incident.run, event.incident.trace_id
        group = found.operation_id.channel.group
        metrics.add_finding(FindingStatus(run, group, found.operation, semconv.MISMATCHED, found.ranks, trace_id))
    elif isinstance(event, StragglerFound):
        late = event.straggler
        run, trace_id = event.incident.run, event.incident.trace_id
        metrics.add_finding(
            FindingStatus(run, late.group.key, late.operation, semconv.STRAGGLER, (late.rank,), trace_id)
        )
    elif isinstance(event, StragglerGone):
        metrics.drop_finding(event.run, event.group, semconv.STRAGGLER, (event.rank,))
    elif isinstance(event, ArrivalsCompared):
        for one in event.lateness:
            late_s = {rank: late_ns / 1e9 for rank, late_ns in one.late_ns.items()}
            counts = ArrivalCounts(one.calls, one.waited_ns / 1e9, Counter(one.last), late_s)
            metrics.add_arrivals(event.run, one.group, counts)
