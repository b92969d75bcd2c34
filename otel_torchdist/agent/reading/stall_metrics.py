"""Shows stalls and findings in the metrics."""

from __future__ import annotations

from collections import Counter

from otel_torchdist import semconv
from otel_torchdist.naming import compress_ranks
from otel_torchdist.stall.events import Event, IncidentHandedOver, IncidentResolved, VerdictGiven
from otel_torchdist.stall.findings.checkpoints import SaveFailed
from otel_torchdist.stall.findings.events import (
    FINDINGS,
    ArrivalsCompared,
    CallsGoOn,
    CallsStuck,
    Finding,
    IdleFound,
    IdleOver,
    MismatchFound,
    PathMeasured,
    ProblemFound,
    SlowGone,
    StragglerFound,
    StragglerGone,
    ValuesFound,
)
from otel_torchdist.stall.findings.slow import PathLengths
from otel_torchdist.stall.findings.values import NonFinite
from otel_torchdist.stall.findings.wording import describe_finding
from otel_torchdist.telemetry.metrics.labels import label_value
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.metrics.run_status import FindingStatus, StallStatus
from otel_torchdist.telemetry.metrics.snapshots import ArrivalCounts, PathSnapshot
from otel_torchdist.verdict.wording.checkpoints import name_checkpoint


def show(event: Event, metrics: NodeMetrics) -> None:
    """Show a stall or a finding, or remove one that no longer holds; ignores other events."""
    if isinstance(event, VerdictGiven):
        verdict = event.verdict
        metrics.set_stall(
            StallStatus(
                run_id=event.incident.run,
                group_key=verdict.operation_id.channel.group,
                operation=verdict.operation,
                verdict=verdict.kind.value,
                ranks=tuple(sorted(verdict.ranks)),
                coverage=f"{verdict.reporting}/{verdict.members}",
                trace_id=event.incident.trace_id,
            )
        )
    elif isinstance(event, IncidentResolved | IncidentHandedOver):
        metrics.clear_stall(event.incident.run)
    elif isinstance(event, PathMeasured):
        metrics.set_path(event.run, _path_of(event.lengths))
    else:
        _show_finding(event, metrics)


def _path_of(lengths: PathLengths) -> PathSnapshot:
    gains: dict[tuple[str, str, str], float] = {}
    for gain in lengths.gains:  # the greatest comes first; two lines of one rank may differ only in their place
        gains.setdefault((gain.cause, compress_ranks(gain.ranks), label_value(gain.operation)), gain.seconds)
    return PathSnapshot(lengths.kinds, lengths.ranks, gains)


def _show_finding(event: Event, metrics: NodeMetrics) -> None:
    if isinstance(event, FINDINGS):
        metrics.add_finding(status_of(event))
    elif isinstance(event, CallsGoOn):
        metrics.drop_finding(event.run, "", event.calls.trouble.value, event.calls.ranks)
    elif isinstance(event, IdleOver):
        metrics.drop_finding(event.run, "", semconv.IDLE, event.idle.ranks)
    elif isinstance(event, SlowGone):
        metrics.drop_finding(event.run, event.part.group, event.part.kind.value, event.part.ranks)
    elif isinstance(event, StragglerGone):
        metrics.drop_finding(event.run, event.group, semconv.STRAGGLER, (event.rank,))
    elif isinstance(event, ArrivalsCompared):
        for one in event.lateness:
            late_s = {rank: late_ns / 1e9 for rank, late_ns in one.late_ns.items()}
            counts = ArrivalCounts(one.calls, one.waited_ns / 1e9, Counter(one.last), late_s)
            metrics.add_arrivals(event.run, one.group, counts)


def status_of(event: Finding) -> FindingStatus:
    """What a finding is, in the words of metrics."""
    run, trace_id, text = event.incident.run, event.incident.trace_id, describe_finding(event)
    if isinstance(event, MismatchFound):
        found = event.mismatch
        group = found.operation_id.channel.group
        return FindingStatus(run, group, found.operation, semconv.MISMATCHED, found.ranks, trace_id, text)
    if isinstance(event, StragglerFound):
        late = event.straggler
        return FindingStatus(run, late.group.key, late.operation, semconv.STRAGGLER, (late.rank,), trace_id, text)
    if isinstance(event, ValuesFound):
        values = event.values
        verdict = semconv.NON_FINITE if isinstance(values, NonFinite) else semconv.DIVERGED
        group = values.operation_id.channel.group
        return FindingStatus(run, group, values.operation, verdict, values.ranks, trace_id, text)
    if isinstance(event, ProblemFound):
        problem = event.problem
        if isinstance(problem, SaveFailed):
            verdict, operation = semconv.CHECKPOINT_FAILED, name_checkpoint(problem.operation, "")
            return FindingStatus(run, "", operation, verdict, problem.ranks, trace_id, text)
        operation, key = problem.example.operations[0], problem.group.key
        return FindingStatus(run, key, operation, semconv.SHARED_GROUP, problem.ranks, trace_id, text)
    if isinstance(event, CallsStuck):
        calls = event.calls
        return FindingStatus(run, "", semconv.REMOTE_CALL, calls.trouble.value, calls.ranks, trace_id, text)
    if isinstance(event, IdleFound):
        return FindingStatus(run, "", "", semconv.IDLE, event.idle.ranks, trace_id, text)
    part = event.part
    return FindingStatus(run, part.group, part.operation, part.kind.value, part.ranks, trace_id, text)
