"""The dashboard of a step's parts: data, forward, backward, optimizer, communication; and of the throughput."""

from __future__ import annotations

from typing import Final

from grafana.dashboard import Section
from grafana.panels import FULL, HALF, About, Column, Limits, Panel, Query, bars, lines, number, rows, stacked
from grafana.promql import OF_MEMBERS, OF_RANKS, ROWS, RUN, WORST, largest, lowest_in_range, rate, worst_in_range

_THIRD: Final = 8
_NO_STEPS: Final = "no steps yet"
_NO_DATA: Final = "neither a DataLoader nor data_wait() was seen"
_NO_DDP: Final = "DDP has timed no step"
_NO_AMOUNT: Final = "mark_step() was called without amounts"
_ENQUEUED: Final = "On a device, the time of backward and optimizer is only the time to enqueue them."
_RANK: Final = "rank {{rank}}"

_DATA: Final = f"job_run_rank:torchdist_data_wait_share:rate1m{{{OF_RANKS}}}"
_BACKWARD: Final = f"job_run_rank:torchdist_backward_share:rate1m{{{OF_RANKS}}}"
_OPTIMIZER: Final = f"job_run_rank:torchdist_optimizer_share:rate1m{{{OF_RANKS}}}"
_BLOCKED: Final = f"job_run_rank:torchdist_blocked_share:rate1m{{{OF_RANKS}}}"
_COMMUNICATION: Final = f"job_run_rank:torchdist_communication_share:rate1m{{{OF_RANKS}}}"
_UPPER: Final = f"job_run_rank:torchdist_compute_share_upper:rate1m{{{OF_RANKS}}}"


def sections() -> list[Section]:
    """Return the rows of the dashboard."""
    return [
        Section("Goals", (_compute(), _data_now(), _sync())),
        Section("Parts of a step", (_parts(), _bounds(), _groups())),
        Section("Ranks", (_worst_data(), _lowest_compute(), _table())),
        Section("Throughput", (_throughput("samples"), _throughput("tokens"), _flops(), _step_time())),
    ]


def _compute() -> Panel:
    return number(
        About(
            "Compute share, at most",
            "Share of time in which ranks neither wait for data nor are blocked in communication, on average. The goal "
            "is more than 85 %. Communication that overlaps with computation counts as computation here.",
            "percentunit",
            _NO_STEPS,
        ),
        Query(f"max(job_run:torchdist_compute_share_upper:rate1m{{{RUN}}})", "at most"),
        span=_THIRD,
    )


def _data_now() -> Panel:
    return number(
        About(
            "Waits for data",
            "Share of time in which ranks wait for data, on average. More than a few percent is bad.",
            "percentunit",
            _NO_DATA,
        ),
        Query(f"avg({_DATA})", "data"),
        Limits(warn=0.05, bad=0.15),
        span=_THIRD,
    )


def _sync() -> Panel:
    return number(
        About(
            "Exposed gradient sync",
            "Share by which the reduction of gradients prolongs a step, as timed by DDP in its newest timed step, on "
            "the rank with the largest share. The goal is less than 5 %.",
            "percentunit",
            _NO_DDP,
        ),
        Query(f"max(job_run:torchdist_gradient_sync_share:mean1m{{{RUN}}})", "of a step"),
        Limits(warn=None, bad=0.05),
        span=_THIRD,
    )


def _parts() -> Panel:
    rest = f"clamp_min(1 - (avg({_DATA}) or vector(0)) - avg({_BACKWARD}) - (avg({_OPTIMIZER}) or vector(0)), 0)"
    return stacked(
        About(
            "Parts of a step",
            "Shares of time, averaged over ranks. `forward and the rest` is the remaining time. A growing data wait is "
            f"bad. {_ENQUEUED}",
            "percentunit",
            _NO_STEPS,
        ),
        [
            Query(f"avg({_DATA})", "data wait"),
            Query(rest, "forward and the rest"),
            Query(f"avg({_BACKWARD})", "backward"),
            Query(f"avg({_OPTIMIZER})", "optimizer"),
        ],
    )


def _bounds() -> Panel:
    return lines(
        About(
            "Exposed communication, between two bounds",
            "Share of time that communication costs, averaged over ranks. Lower bound: the time in which a "
            "thread was blocked in it. Upper bound: the time in which an operation was in flight. The exact value "
            "depends on the overlap and needs a profiler. A lower bound above 20 % is bad.",
            "percentunit",
            _NO_STEPS,
        ),
        [Query(f"avg({_BLOCKED})", "at least"), Query(f"avg({_COMMUNICATION})", "at most")],
        Limits(warn=None, bad=0.2),
    )


def _groups() -> Panel:
    seconds = f"avg by (group) (sum by (group, rank) ({rate('torchdist_timed_operation_seconds_total', OF_MEMBERS)}))"
    return bars(
        About(
            "Operations by group",
            "Seconds of operations per second, averaged over the group's ranks: concurrent operations add up. "
            "Communication costs most in the group on top.",
            "s",
            _NO_STEPS,
        ),
        Query(f"topk({ROWS}, {seconds})", "{{group}}"),
        span=FULL,
    )


def _worst_data() -> Panel:
    return lines(
        About(
            "Data wait by rank",
            f"Share of time in which a rank waits for data, of the {WORST} ranks with the largest share in the time "
            "range. One line far above the others is bad: all ranks wait for that rank.",
            "percentunit",
            _NO_DATA,
        ),
        [Query(worst_in_range(WORST, _DATA, "rank"), _RANK)],
    )


def _lowest_compute() -> Panel:
    return lines(
        About(
            "Compute share by rank, at most",
            f"The {WORST} ranks with the lowest share in the time range. The others wait for the rank that computes "
            "most.",
            "percentunit",
            _NO_STEPS,
        ),
        [Query(lowest_in_range(WORST, _UPPER, "rank"), _RANK)],
    )


def _table() -> Panel:
    return rows(
        About(
            "Ranks that wait longest for data",
            f"Current shares of time, of the {ROWS} ranks that wait longest for data. {_ENQUEUED}",
            "percentunit",
            _NO_DATA,
        ),
        [
            Query(largest(ROWS, _DATA, "rank"), "data"),
            *(
                Query(f"max by (rank) ({series}) and on (rank) {largest(ROWS, _DATA, 'rank')}", name)
                for series, name in ((_BACKWARD, "backward"), (_OPTIMIZER, "optimizer"), (_BLOCKED, "blocked"))
            ),
        ],
        [
            Column("rank", "Rank"),
            Column("Value #A", "Data wait"),
            Column("Value #B", "Backward"),
            Column("Value #C", "Optimizer"),
            Column("Value #D", "Blocked in communication"),
        ],
        sort="Data wait",
    )


def _throughput(what: str) -> Panel:
    return lines(
        About(
            f"{what.capitalize()} a second",
            f"Sum over all ranks, as the program reports them with mark_step({what}=). A fall is bad. Ranks that share "
            "a batch, as in tensor parallelism, count it several times unless only one of them reports it.",
            "short",
            _NO_AMOUNT,
        ),
        [Query(f"sum(job_run:torchdist_{what}:rate1m{{{RUN}}})", f"{what} a second")],
        span=HALF,
    )


def _flops() -> Panel:
    return lines(
        About(
            "Floating-point operations a second",
            "Sum over all ranks, as the program reports them with mark_step(flops=). Divided by the peak of the "
            "devices, it is the model FLOPs utilization (MFU). A fall is bad.",
            "flops",
            _NO_AMOUNT,
        ),
        [Query(f"sum(job_run:torchdist_flops:rate1m{{{RUN}}})", "operations a second")],
    )


def _step_time() -> Panel:
    per_step = f"sum({rate('torchdist_timed_steps_total', OF_RANKS)}) > 0"
    return lines(
        About(
            "Seconds of a step",
            "Mean duration of a step over ranks, and the wait for data in it. Climbing lines are bad.",
            "s",
            _NO_STEPS,
        ),
        [
            Query(f"sum({rate('torchdist_timed_step_seconds_total', OF_RANKS)}) / ({per_step})", "step"),
            Query(f"sum({rate('torchdist_data_wait_seconds_total', OF_RANKS)}) / ({per_step})", "data wait"),
        ],
    )
