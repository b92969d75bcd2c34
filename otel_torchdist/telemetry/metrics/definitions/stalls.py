"""Stalls and findings, whether ranks are alive, and which of them comes last."""

from __future__ import annotations

from typing import Final

from otel_torchdist.model.finding import FindingKind
from otel_torchdist.telemetry.metrics.metric import BY_GROUP, BY_RANK, Numbers, Unit, counter, gauge, info, of_rank
from otel_torchdist.telemetry.metrics.snapshots import NodeSnapshot


def stalled(node: NodeSnapshot) -> Numbers:
    """For each group of each run, whether its operation holds up the run."""
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
    """Yield the findings in each run that are not stalls, each once."""
    for label, run in node.runs.items():
        for found in dict.fromkeys(run.findings):
            yield (label, found.group, found.operation, found.verdict, found.ranks, found.trace_id), 1


def arrivals(node: NodeSnapshot) -> Numbers:
    """Yield the number of calls of each group whose arrivals have been compared."""
    for label, run in node.runs.items():
        for group, counts in run.arrivals.items():
            yield (label, group), counts.calls


def last_arrivals(node: NodeSnapshot) -> Numbers:
    """Yield the number of compared calls of each group in which each rank came last."""
    for label, run in node.runs.items():
        for group, counts in run.arrivals.items():
            for rank, number in counts.last.items():
                yield (label, str(rank), group), number


def lateness(node: NodeSnapshot) -> Numbers:
    """Yield the seconds for which the others waited for each rank alone, by group."""
    for label, run in node.runs.items():
        for group, counts in run.arrivals.items():
            for rank, seconds in counts.late_s.items():
                yield (label, str(rank), group), seconds


def waited(node: NodeSnapshot) -> Numbers:
    """Yield the seconds for which a rank waited on average for the last one, in the compared calls of each group."""
    for label, run in node.runs.items():
        for group, counts in run.arrivals.items():
            yield (label, group), counts.waited_s


STALLED: Final = gauge(
    "torchdist.stalled",
    Unit.NONE,
    "1 while the run is stalled and this group's operation is the cause, else 0.",
    ("run", "group"),
    stalled,
)
STALL_INFO: Final = info(
    "torchdist.stall.info",
    "The verdict on a stall, while it lasts: ranks that the verdict names, and the trace that shows it.",
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
    "A finding without a stall: " + "; ".join(f"{kind.meaning} ({kind.value})" for kind in FindingKind) + ".",
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
        "1 while the rank's process is alive, 0 after it has failed or died, no series after it has finished.",
        BY_RANK,
        of_rank(lambda rank: None if rank.up is None else int(rank.up)),
    ),
    gauge(
        "torchdist.idle",
        Unit.SECONDS,
        "Time since the rank last entered or left an operation, or ended a step; no series of a rank that is over.",
        BY_RANK,
        of_rank(lambda rank: rank.idle_s if rank.up else None),
    ),
    STALLED,
    STALL_INFO,
    info(
        "torchdist.attempt_ended.info",
        "How the job's last attempt has ended, until the next one steps or the agent exits: the last verdict, with the "
        "ranks that it names; finished if all ranks have; ended if they failed or were ended, and no rank is named.",
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
        "Collectives of the group for which the arrival times of the node's ranks were compared.",
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
        "Time that the other ranks of the node waited in compared collectives for this rank alone.",
        BY_GROUP,
        lateness,
    ),
    counter(
        "torchdist.waited",
        Unit.SECONDS,
        "Time that a rank of the node waited in compared collectives for the last one, averaged over the node's ranks.",
        ("run", "group"),
        waited,
    ),
)


def path_kinds(node: NodeSnapshot) -> Numbers:
    """Yield the seconds of each run's critical path, by what happens on it."""
    for label, run in node.runs.items():
        if run.path is not None:
            for kind, seconds in run.path.kinds.items():
                yield (label, kind), seconds


def path_ranks(node: NodeSnapshot) -> Numbers:
    """Yield the seconds for which ranks compute on each run's critical path."""
    for label, run in node.runs.items():
        if run.path is not None:
            for rank, seconds in run.path.ranks.items():
                yield (label, str(rank)), seconds


def path_gains(node: NodeSnapshot) -> Numbers:
    """Yield the seconds by which steps of each run would be shorter without one cause."""
    for label, run in node.runs.items():
        if run.path is not None:
            for labels, seconds in run.path.gains.items():
                yield (label, *labels), seconds


PATH_METRICS: Final = (
    gauge(
        "torchdist.critical_path",
        Unit.SECONDS,
        "Length of the critical path through an average one of the newest steps, by what happens on it; only where the "
        "run is judged.",
        ("run", "kind"),
        path_kinds,
    ),
    gauge(
        "torchdist.critical_path.rank",
        Unit.SECONDS,
        "How long the rank computes on that path, of the 16 ranks that do so longest.",
        BY_RANK,
        path_ranks,
    ),
    gauge(
        "torchdist.critical_path.gain",
        Unit.SECONDS,
        "What such a step would be shorter at most without one cause: a line, rank, node or stage that computes longer "
        "than its peers, or a transfer; at most eight.",
        ("run", "cause", "ranks", "operation"),
        path_gains,
    ),
)
