"""Metrics of stalls, findings, liveness of ranks, stragglers and the critical path."""

from __future__ import annotations

from typing import Final

from otel_torchdist.model.reports.finding import FindingKind
from otel_torchdist.telemetry.metrics.metric import BY_GROUP, BY_RANK, Numbers, Unit, counter, gauge, info, of_rank
from otel_torchdist.telemetry.metrics.snapshots import NodeSnapshot


def stalled(node: NodeSnapshot) -> Numbers:
    """Yield, for each group of each run, whether its operation stalls the run."""
    for label, run in node.runs.items():
        cause = run.stall.group if run.stall else None
        for group in sorted({*run.groups, *run.stalled_groups}):
            yield (label, group), int(group == cause)


def stall_info(node: NodeSnapshot) -> Numbers:
    """Yield the verdict on each stalled run."""
    for label, run in node.runs.items():
        if run.stall:
            stall = run.stall
            yield (
                (label, stall.group, stall.operation, stall.verdict, stall.ranks, stall.coverage, stall.trace_id),
                1,
            )


def attempt_ended(node: NodeSnapshot) -> Numbers:
    """Yield the end of each run's last attempt."""
    for label, run in node.runs.items():
        if run.end:
            end = run.end
            yield (label, end.group, end.operation, end.verdict, end.ranks, end.trace_id), 1


def finding_info(node: NodeSnapshot) -> Numbers:
    """Yield the findings of each run that are not stalls, without duplicates."""
    for label, run in node.runs.items():
        for finding in dict.fromkeys(run.findings):
            yield (label, finding.group, finding.operation, finding.verdict, finding.ranks, finding.trace_id), 1


def arrivals(node: NodeSnapshot) -> Numbers:
    """Yield the number of calls of each group with compared arrivals."""
    for label, run in node.runs.items():
        for group, counts in run.arrivals.items():
            yield (label, group), counts.calls


def last_arrivals(node: NodeSnapshot) -> Numbers:
    """Yield the number of compared calls of each group at which each rank arrived last."""
    for label, run in node.runs.items():
        for group, counts in run.arrivals.items():
            for rank, number in counts.last.items():
                yield (label, str(rank), group), number


def lateness(node: NodeSnapshot) -> Numbers:
    """Yield the seconds that the other ranks waited for each rank alone, by group."""
    for label, run in node.runs.items():
        for group, counts in run.arrivals.items():
            for rank, seconds in counts.late_s.items():
                yield (label, str(rank), group), seconds


def waited(node: NodeSnapshot) -> Numbers:
    """Yield the average seconds that a rank waited for the last rank, in the compared calls of each group."""
    for label, run in node.runs.items():
        for group, counts in run.arrivals.items():
            yield (label, group), counts.waited_s


STALLED: Final = gauge(
    "torchdist.stalled",
    Unit.NONE,
    "1 while the run is stalled because of an operation of this group, otherwise 0.",
    ("run", "group"),
    stalled,
)
STALL_INFO: Final = info(
    "torchdist.stall.info",
    "Verdict on the current stall, with the ranks that it names and the id of its trace.",
    (
        "run",
        "group",
        "operation",
        "verdict",
        "ranks",
        "coverage",
        "trace_id",
    ),
    stall_info,
)
FINDING_INFO: Final = info(
    "torchdist.finding.info",
    "Finding other than a stall: " + "; ".join(f"{kind.meaning} ({kind.value})" for kind in FindingKind) + ".",
    (
        "run",
        "group",
        "operation",
        "verdict",
        "ranks",
        "trace_id",
    ),
    finding_info,
)
STALL_METRICS: Final = (
    gauge(
        "torchdist.up",
        Unit.NONE,
        "1 while the rank's process is alive, 0 after it failed or died. No series after it finished.",
        BY_RANK,
        of_rank(lambda rank: None if rank.up is None else int(rank.up)),
    ),
    gauge(
        "torchdist.idle",
        Unit.SECONDS,
        "Time since the rank last entered or left an operation, or ended a step. No series after the rank has ended.",
        BY_RANK,
        of_rank(lambda rank: rank.idle_s if rank.up else None),
    ),
    STALLED,
    STALL_INFO,
    info(
        "torchdist.attempt_ended.info",
        "End of the job's last attempt, shown until the first step of the next attempt or the agent's exit. verdict is "
        "the last verdict, with the ranks that it names; finished if all ranks finished; or ended if ranks failed or "
        "were ended and no rank is named.",
        (
            "run",
            "group",
            "operation",
            "verdict",
            "ranks",
            "trace_id",
        ),
        attempt_ended,
    ),
    FINDING_INFO,
    counter(
        "torchdist.arrivals_compared",
        Unit.OPERATIONS,
        "Collectives of the group in which the arrival times of the node's ranks were compared.",
        ("run", "group"),
        arrivals,
    ),
    counter(
        "torchdist.last_arrivals",
        Unit.OPERATIONS,
        "Compared collectives at which the rank arrived last.",
        BY_GROUP,
        last_arrivals,
    ),
    counter(
        "torchdist.lateness",
        Unit.SECONDS,
        "Time that the other ranks of the node waited for this rank alone, in compared collectives.",
        BY_GROUP,
        lateness,
    ),
    counter(
        "torchdist.waited",
        Unit.SECONDS,
        "Time that the node's ranks waited for the last rank in compared collectives, as an average over the ranks.",
        ("run", "group"),
        waited,
    ),
)


def path_kinds(node: NodeSnapshot) -> Numbers:
    """Yield the seconds on each run's critical path, by kind of work."""
    for label, run in node.runs.items():
        if run.path is not None:
            for kind, seconds in run.path.kinds.items():
                yield (label, kind), seconds


def path_ranks(node: NodeSnapshot) -> Numbers:
    """Yield the seconds that ranks compute on each run's critical path."""
    for label, run in node.runs.items():
        if run.path is not None:
            for rank, seconds in run.path.ranks.items():
                yield (label, str(rank)), seconds


def path_gains(node: NodeSnapshot) -> Numbers:
    """Yield upper bounds on the seconds that a step of each run would save without a cause."""
    for label, run in node.runs.items():
        if run.path is not None:
            for labels, seconds in run.path.gains.items():
                yield (label, *labels), seconds


PATH_METRICS: Final = (
    gauge(
        "torchdist.critical_path",
        Unit.SECONDS,
        "Length of the critical path through an average step of the newest steps, by kind of work. Only on the node "
        "that judges the run.",
        ("run", "kind"),
        path_kinds,
    ),
    gauge(
        "torchdist.critical_path.rank",
        Unit.SECONDS,
        "Time that the rank computes on the critical path of an average step. Only for the 16 ranks with the "
        "most time.",
        BY_RANK,
        path_ranks,
    ),
    gauge(
        "torchdist.critical_path.gain",
        Unit.SECONDS,
        "Upper bound on the time that an average step would save without this cause: a line, rank, node or stage that "
        "computes longer than its peers, or a transfer. At most eight causes.",
        ("run", "cause", "ranks", "operation"),
        path_gains,
    ),
)
