"""The dashboard of stalls: verdicts and traces, the progress of each rank, and its current operation."""

from __future__ import annotations

from typing import Final

from grafana.dashboard import Section
from grafana.links import to_the_trace
from grafana.panels import HALF, About, Column, Panel, Query, lines, rows
from grafana.promql import OF_GROUPS, OF_MEMBERS, OF_RANKS, ROWS, highest, largest

_GROUPS: Final = 16
_MEMBER: Final = "run, group, rank"


def sections() -> list[Section]:
    """Return the rows of the dashboard."""
    return [
        Section("Verdict", (_verdicts(), _findings(), _over_time(), _alerts())),
        Section("Ranks", (_sequences(), _in_flight(), _gone(), _groups())),
    ]


def _verdicts() -> Panel:
    return _history(
        About(
            "Stalls",
            "All verdicts on stalls within the time range, newest first. Coverage is the number of reporting ranks and "
            "of all ranks. Any row is bad; its trace has a bar for each rank, and the stack of the missing rank.",
            "none",
            "no stall",
        ),
        "torchdist_stall_info",
        ("verdict", "ranks", "operation", "coverage", "group", "run", "trace_id"),
    )


def _findings() -> Panel:
    return _history(
        About(
            "Findings without a stall",
            "Calls that do not match (mismatched) and ranks that are repeatedly last (straggler), within the time "
            "range. A mismatch is bad even if the job continues: results may be wrong.",
            "none",
            "no finding",
        ),
        "torchdist_finding_info",
        ("verdict", "ranks", "operation", "group", "run", "trace_id"),
    )


def _history(about: About, metric: str, labels: tuple[str, ...]) -> Panel:
    by = ", ".join(labels)
    times = f"timestamp({metric}{{{OF_GROUPS}}})[$__range:5s]"
    legend = "{{verdict}}: ranks {{ranks}} in {{operation}}"
    return rows(
        about,
        [
            Query(f"1000 * min by ({by}) (min_over_time({times}))", f"{legend}, first seen"),
            Query(f"1000 * max by ({by}) (max_over_time({times}))", f"{legend}, last seen"),
        ],
        [
            Column("Value #A", "First seen", unit="dateTimeAsLocal"),
            Column("Value #B", "Last seen", unit="dateTimeFromNow"),
            *(Column(label, label.capitalize()) for label in labels if label != "trace_id"),
            Column("trace_id", "Trace", links=to_the_trace()),
        ],
        sort="Last seen",
    )


def _over_time() -> Panel:
    stalled = f"torchdist_stalled{{{OF_GROUPS}}}"
    chosen = f"topk({_GROUPS}, max by (group) ({highest(stalled)}) > 0)"
    return lines(
        About(
            "Stalled over time",
            "Shows 1 while an operation of the group is stalled. Lines at regular intervals point to a periodic "
            "cause, such as a checkpoint.",
            "short",
            "no stall in this time",
        ),
        [Query(f"max by (group) ({stalled}) and on (group) {chosen}", "{{group}}")],
    )


def _alerts() -> Panel:
    # Some alerts have no run or rank, so an empty label matches too.
    of_this_job = 'job=~"$job|", run=~"$run|", group=~"$group|", rank=~"$rank|"'
    where = f'alertname=~"Torchdist.*", alertstate="firing", {of_this_job}'
    labels = ("alertname", "severity", "run", "group", "rank")
    return rows(
        About(
            "Firing alerts",
            "Firing alerts of this job. Any row is bad.",
            "none",
            "no alert",
        ),
        [Query(largest(ROWS, f"ALERTS{{{where}}}", ", ".join(labels)), "{{alertname}}")],
        [Column("alertname", "Alert"), *(Column(label, label.capitalize()) for label in labels[1:])],
        span=HALF,
    )


def _sequences() -> Panel:
    behind = largest(ROWS, f"job_run_group_rank:torchdist_sequence_behind:max{{{OF_MEMBERS}}}", _MEMBER)

    def of_these(metric: str) -> str:
        return f"max by ({_MEMBER}) ({metric}{{{OF_MEMBERS}}}) and on ({_MEMBER}) {behind}"

    return rows(
        About(
            "Last collective of each rank",
            "Sequence numbers of the last collective that a rank has entered in a group, and of the last that has "
            f"ended on it; the {ROWS} ranks that are furthest behind the others. Inspect the rank that is behind while "
            "others wait.",
            "none",
            "no collective",
        ),
        [
            Query(behind, "rank {{rank}} in {{group}}, behind"),
            Query(of_these("torchdist_last_started_sequence"), "rank {{rank}} in {{group}}, entered"),
            Query(of_these("torchdist_last_completed_sequence"), "rank {{rank}} in {{group}}, ended"),
        ],
        [
            Column("rank", "Rank"),
            Column("group", "Group"),
            Column("Value #A", "Behind"),
            Column("Value #B", "Entered"),
            Column("Value #C", "Ended"),
        ],
        sort="Behind",
        span=HALF,
    )


def _in_flight() -> Panel:
    ages = f"torchdist_operation_oldest_age_seconds{{{OF_MEMBERS}}}"
    return rows(
        About(
            "Operations in flight",
            f"The {ROWS} oldest operations in flight, with their age. A growing age means that the rank waits.",
            "s",
            "nothing in flight",
        ),
        [
            Query(
                f"{largest(ROWS, ages, f'{_MEMBER}, operation')} > 0",
                "rank {{rank}} in {{operation}} of {{group}}",
            )
        ],
        [
            Column("rank", "Rank"),
            Column("operation", "Operation"),
            Column("group", "Group"),
            Column("Value", "Age"),
        ],
        sort="Age",
        span=HALF,
    )


def _gone() -> Panel:
    return rows(
        About(
            "Ranks gone",
            f"Ranks that have failed or died, {ROWS} at most. Any row is bad.",
            "none",
            "no rank is gone",
        ),
        [Query(f"bottomk({ROWS}, max by (run, rank) (torchdist_up{{{OF_RANKS}}}) == 0)", "rank {{rank}}")],
        [Column("rank", "Rank"), Column("run", "Run")],
        span=8,
    )


def _groups() -> Panel:
    labels = "group, description, size"
    return rows(
        About(
            "Groups",
            "Process groups, with their label in metrics, their purpose and their number of ranks.",
            "none",
            "no group",
        ),
        [Query(largest(2 * ROWS, f"torchdist_group_info{{{OF_GROUPS}}}", labels), "{{group}}: {{description}}")],
        [Column("group", "Group"), Column("description", "Description"), Column("size", "Ranks")],
        span=16,
    )
