"""The overview dashboard, the first to open: health and speed of the job, and the cost of communication."""

from __future__ import annotations

from typing import Final

from grafana.dashboard import Section
from grafana.links import to_the_trace
from grafana.panels import About, Column, Limits, Panel, Query, heat_by_row, lines, number, rows
from grafana.promql import (
    OF_GROUPS,
    OF_MEMBERS,
    OF_RANKS,
    ROWS,
    RUN,
    WORST,
    highest,
    largest,
    percentile,
    rate,
    worst_in_range,
)

_LONG_WAIT_S: Final = 5
"""Age of an operation in flight from which its rank is in the top half of the heat map, in seconds."""
_STALL_TIMEOUT_S: Final = 10
"""Default age of a stalled operation, in seconds: the hottest color of a cell."""
_NODES: Final = 8
"""Number of nodes with their own line."""
_NO_DATA: Final = "no data"
_NO_NODES: Final = "no node-exporter"
_NO_STEPS: Final = "no steps yet"
_NO_CALLS: Final = "no remote call"
_FUNCTIONS: Final = 5
"""Number of remote functions with their own lines."""

_UP: Final = f"max by (run, rank) (torchdist_up{{{OF_RANKS}}})"
_OLDEST: Final = f"job_run_rank:torchdist_oldest_age_seconds:max{{{OF_RANKS}}}"
_BLOCKED: Final = f"job_run_rank:torchdist_blocked_share:rate1m{{{OF_RANKS}}}"
_IN_FLIGHT: Final = f"job_run_rank:torchdist_communication_share:rate1m{{{OF_RANKS}}}"
_TOO_MUCH_COMMUNICATION: Final = Limits(warn=None, bad=0.05)
_TOO_MUCH_OVERHEAD: Final = Limits(warn=None, bad=0.005)


def sections() -> list[Section]:
    """Return the rows of the dashboard."""
    return [
        Section("Now", (_stalls(), *_health(), *_speed())),
        Section("Ranks", (_ages(),)),
        Section("Speed", (_step_time(), _steps(), _bytes(), _communication())),
        Section("Machine", (_memory(), _memory_pressure())),
        Section("Checkpoints", (_checkpoint_age(), _checkpoint_time(), _checkpoint_bytes())),
        Section("Remote calls", (_call_rate(), _call_time())),
        Section("Evidence", (_lost(), _overhead())),
    ]


def _health() -> list[Panel]:
    return [
        number(
            About(
                "Ranks up", "Ranks with a live process. Fewer than the job was started with is bad.", "short", _NO_DATA
            ),
            Query(f"sum({_UP})", "ranks up"),
            span=3,
        ),
        number(
            About(
                "Ranks gone",
                "Ranks that have failed or died. Any is bad.",
                "short",
                _NO_DATA,
            ),
            Query(f"sum(1 - {_UP})", "ranks gone"),
            Limits(warn=None, bad=1),
            span=3,
        ),
        number(
            About(
                "Stalled groups",
                "Process groups with a stalled operation now. Any is bad; the table above has the verdict.",
                "short",
                _NO_DATA,
            ),
            Query(f"sum(max by (run, group) (torchdist_stalled{{{OF_GROUPS}}}))", "stalled groups"),
            Limits(warn=None, bad=1),
            span=3,
        ),
        number(
            About(
                "Oldest operation",
                "Age of the oldest operation in flight on any rank. If it keeps growing, ranks wait for an absent "
                "rank.",
                "s",
                _NO_DATA,
            ),
            Query(f"max({_OLDEST})", "oldest operation"),
            Limits(warn=_LONG_WAIT_S, bad=_STALL_TIMEOUT_S),
        ),
    ]


def _speed() -> list[Panel]:
    return [
        number(
            About("Step time", "Mean duration of a step over the last minute. Rising is bad.", "s", _NO_STEPS),
            Query(f"job_run:torchdist_step_seconds:mean1m{{{RUN}}}", "step time"),
        ),
        number(
            About("Steps", "Steps that a rank finishes per second. Falling is bad.", "suffix: /s", _NO_STEPS),
            Query(f"job_run:torchdist_steps:rate1m{{{RUN}}}", "steps"),
            span=3,
        ),
        number(
            About(
                "Blocked in communication",
                "Share of time in which ranks were blocked in operations and in waits for them, mean over the selected "
                "ranks. From 5 % on, the network or a late rank costs more than it should.",
                "percentunit",
                _NO_DATA,
            ),
            Query(f"avg({_BLOCKED})", "blocked"),
            _TOO_MUCH_COMMUNICATION,
        ),
    ]


def _stalls() -> Panel:
    labels = "group, operation, verdict, ranks, trace_id"
    info = f"torchdist_stall_info{{{OF_GROUPS}}}"
    since = f"1000 * min by ({labels}) (min_over_time(timestamp({info})[$__range:5s]))"
    return rows(
        About(
            "Ongoing stalls",
            "The verdict on each ongoing stall, with the named ranks and the trace. Any row is bad; the dashboard "
            "Stall investigation has the details.",
            "none",
            "no stall",
        ),
        [
            Query(
                f"{since} and on ({labels}) max by ({labels}) ({info})", "{{verdict}}: ranks {{ranks}} in {{operation}}"
            )
        ],
        [
            Column("verdict", "Verdict"),
            Column("ranks", "Ranks"),
            Column("operation", "Operation"),
            Column("group", "Group"),
            Column("Value", "Since", unit="dateTimeFromNow"),
            Column("trace_id", "Trace", links=to_the_trace()),
        ],
        height=5,
    )


def _ages() -> Panel:
    def ranks(condition: str) -> str:
        chosen = f"topk({ROWS}, max by (rank) ({highest(_OLDEST)}) {condition})"
        return f"max by (rank) ({_OLDEST}) and on (rank) {chosen}"

    return heat_by_row(
        About(
            "Age of the oldest operation in flight, by rank",
            f"On top up to {ROWS} ranks that were in one operation for {_LONG_WAIT_S} s or more, below up to {ROWS} "
            "other ranks. A hot stripe is a waiting rank; a rank that stays pale beside them may be the absent one.",
            "s",
            "no data",
        ),
        [
            Query(ranks(f">= {_LONG_WAIT_S}"), "rank {{rank}}"),
            Query(ranks(f"< {_LONG_WAIT_S}"), "rank {{rank}}"),
        ],
        hottest=_STALL_TIMEOUT_S,
    )


def _step_time() -> Panel:
    buckets = "torchdist_step_duration_seconds_bucket"
    return lines(
        About(
            "Duration of steps",
            "Duration of steps: mean of the last minute, median and 99th percentile. A 99th percentile far above the "
            "median means that some steps are delayed.",
            "s",
            _NO_STEPS,
        ),
        [
            Query(f"job_run:torchdist_step_seconds:mean1m{{{RUN}}}", "mean"),
            Query(percentile(0.5, buckets, RUN), "p50"),
            Query(percentile(0.99, buckets, RUN), "p99"),
        ],
    )


def _steps() -> Panel:
    return lines(
        About("Steps a second", "Steps that a rank finishes per second. Falling is bad.", "suffix: /s", _NO_STEPS),
        [Query(f"job_run:torchdist_steps:rate1m{{{RUN}}}", "steps")],
    )


def _bytes() -> Panel:
    return lines(
        About(
            "Bytes contributed",
            "Bytes per second that the selected ranks contribute to operations, in total. A fall without a change of "
            "the model means that the job has slowed down.",
            "Bps",
            _NO_DATA,
        ),
        [Query(f"sum({rate('torchdist_message_bytes_total', OF_MEMBERS)})", "bytes")],
    )


def _communication() -> Panel:
    return lines(
        About(
            "Share of time in communication",
            "Blocked: threads of the rank were in operations or in waits for them, which delays the step; above the "
            "line at 5 % is bad. Communicating: an operation was in flight, perhaps beside computation; this alone is "
            "not bad.",
            "percentunit",
            _NO_DATA,
        ),
        [
            Query(f"avg({_BLOCKED})", "blocked, mean"),
            Query(f"avg({_IN_FLIGHT})", "communicating, mean"),
            Query(worst_in_range(WORST, _BLOCKED, "rank"), "blocked, rank {{rank}}"),
            Query(worst_in_range(WORST, _IN_FLIGHT, "rank"), "communicating, rank {{rank}}"),
        ],
        _TOO_MUCH_COMMUNICATION,
    )


def _memory() -> Panel:
    return lines(
        About(
            "Memory in use, by node",
            f"Share of a node's memory that is not available to programs, of the {_NODES} nodes with the highest "
            "share, from node-exporter. Near 100 % the kernel kills a process, perhaps a rank.",
            "percentunit",
            _NO_NODES,
        ),
        [
            Query(
                worst_in_range(_NODES, f"job_run_host_name:torchdist_memory_used_share:max{{{RUN}}}", "host_name"),
                "{{host_name}}",
            )
        ],
        Limits(warn=None, bad=0.95),
    )


def _memory_pressure() -> Panel:
    return lines(
        About(
            "Memory pressure, by node",
            "Share of time in which all tasks waited for memory, on the node or in the pod of the ranks (the kernel's "
            f"PSI, full), of the {_NODES} worst nodes, from node-exporter and cAdvisor. Above the line at 10 % is bad.",
            "percentunit",
            _NO_NODES,
        ),
        [
            Query(
                worst_in_range(_NODES, f"job_run_host_name:torchdist_memory_pressure:rate1m{{{RUN}}}", "host_name"),
                "{{host_name}}",
            )
        ],
        Limits(warn=None, bad=0.1),
    )


def _checkpoint_age() -> Panel:
    return lines(
        About(
            "Age of the last checkpoint",
            "Time since the end of the last save, and three times the longest interval between recent saves. Above "
            "that line a checkpoint is overdue: saves fail, hang, or are not started.",
            "s",
            "no save yet",
        ),
        [
            Query(f"min(torchdist_checkpoint_age_seconds{{{RUN}}})", "age"),
            Query(f"3 * min(torchdist_checkpoint_interval_seconds{{{RUN}}})", "overdue"),
        ],
    )


def _checkpoint_time() -> Panel:
    seconds = f"increase(torchdist_checkpoint_seconds_total{{{OF_RANKS}}}[$__rate_interval])"
    return lines(
        About(
            "Time in stages of checkpoints",
            "Seconds that the slowest of the selected ranks spends in each stage of a checkpoint. "
            "`write` and `read` include the wait for the slowest rank; `write_data` and `read_data` do not.",
            "s",
            "no checkpoint",
        ),
        [Query(f"max by (operation, stage) ({seconds}) > 0", "{{operation}} {{stage}}")],
    )


def _checkpoint_bytes() -> Panel:
    moved = rate("torchdist_checkpoint_size_bytes_total", OF_RANKS)
    return lines(
        About(
            "Bytes of checkpoints",
            "Bytes per second that the selected ranks write and read, in total, for storage that reports them.",
            "Bps",
            "no checkpoint",
        ),
        [Query(f"sum by (operation) ({moved})", "{{operation}}")],
    )


def _call_rate() -> Panel:
    count = "rpc_client_call_duration_seconds_count"
    of_failed = f'{RUN}, error_type!=""'
    calls = f"sum by (rpc_method) ({rate(count, RUN)})"
    failed = f"sum by (error_type) ({rate(count, of_failed)})"
    return lines(
        About(
            "Remote calls a second",
            f"Calls of torch.distributed.rpc that ended while a thread waited for them: the {_FUNCTIONS} most frequent "
            "functions, and failed calls by error. Failures are bad, and so is a function that is no longer called.",
            "suffix: /s",
            _NO_CALLS,
        ),
        [
            Query(largest(_FUNCTIONS, calls, "rpc_method"), "{{rpc_method}}"),
            Query(largest(_FUNCTIONS, failed, "error_type"), "failed, {{error_type}}"),
        ],
    )


def _call_time() -> Panel:
    def slowest(side: str) -> str:
        buckets = f"rpc_{side}_call_duration_seconds_bucket"
        return largest(_FUNCTIONS, percentile(0.99, buckets, RUN, "rpc_method"), "rpc_method")

    return lines(
        About(
            "Duration of remote calls",
            f"The 99th percentile of the {_FUNCTIONS} slowest functions: the time until the caller had the result, and "
            "the run time of the function. If only the first grows, calls wait for a free thread or for the network.",
            "s",
            _NO_CALLS,
        ),
        [
            Query(slowest("client"), "{{rpc_method}}, called"),
            Query(slowest("server"), "{{rpc_method}}, run"),
        ],
    )


def _lost() -> Panel:
    spans = rate("torchdist_spans_dropped_total", 'job="$job"')
    return lines(
        About(
            "Evidence lost",
            "Records that were overwritten unread, spans that could not be exported, and operations with an unknown "
            "end on a device. All should be zero: they are missing from traces and metrics.",
            "cps",
            _NO_DATA,
        ),
        [
            Query(f"sum({rate('torchdist_records_lost_total', OF_RANKS)})", "records lost"),
            Query(f"sum({spans})", "spans dropped, all runs"),
            Query(f"sum({rate('torchdist_operations_untracked_total', OF_RANKS)})", "operations untracked"),
        ],
    )


def _overhead() -> Panel:
    of_a_rank = f"sum by (rank) ({rate('torchdist_overhead_seconds_total', OF_RANKS)})"
    return lines(
        About(
            "Overhead of the instrumentation",
            "Share of time that the instrumentation takes on the ranks' threads, by its own estimate. Above the line "
            "at 0.5 % is bad.",
            "percentunit",
            _NO_DATA,
        ),
        [Query(f"avg({of_a_rank})", "mean"), Query(f"max({of_a_rank})", "worst rank")],
        _TOO_MUCH_OVERHEAD,
    )
