"""The dashboard of collectives: latency by operation and message size, waiting time, and the ranks waited for."""

from __future__ import annotations

from typing import Final

from grafana.dashboard import Section
from grafana.panels import (
    About,
    Limits,
    Panel,
    Query,
    bars,
    heat_of_buckets,
    lines,
    stacked,
)
from grafana.promql import (
    OF_GROUPS,
    OF_MEMBERS,
    OF_MEMBERS_OPERATIONS,
    OF_OPERATIONS,
    largest,
    mean_of,
    percentile,
    rate,
)

_DURATION: Final = "torchdist_operation_duration_seconds"
_BARS: Final = 16
_NO_CALLS: Final = "no operation has ended"
_NOT_COMPARED: Final = "no collective was compared"
_STRAGGLER: Final = Limits(warn=0.05, bad=0.1)
"""A rank that costs the others 10 % of their time is reported as a straggler."""


def sections() -> list[Section]:
    """Return the rows of the dashboard."""
    return [
        Section("Latency", (_latency("operation"), _latency("message_size"), _distribution(), _wait_and_transfer())),
        Section("Arrival order", (_comes_last(), _makes_wait())),
        Section("Throughput", (_bandwidth("algorithm"), _bandwidth("bus"), _calls(), _bytes())),
    ]


def _latency(by: str) -> Panel:
    name = by.replace("_", " ")
    return lines(
        About(
            f"Latency by {name}",
            "Median, 90th and 99th percentile of the duration of operations, including waits for other ranks. A 99th "
            "percentile far above the median is bad: a late rank or a slow link delays some calls.",
            "s",
            _NO_CALLS,
        ),
        [
            Query(percentile(share / 100, f"{_DURATION}_bucket", OF_OPERATIONS, by), f"p{share} {{{{{by}}}}}")
            for share in (50, 90, 99)
        ],
    )


def _distribution() -> Panel:
    return heat_of_buckets(
        About(
            "Distribution of latency",
            "Operations per second, by duration. A second band above the usual band is bad: its calls wait for "
            "a late rank or a slow link.",
            "ops",
            _NO_CALLS,
        ),
        f"sum by (le) ({rate(f'{_DURATION}_bucket', OF_OPERATIONS)})",
        axis_unit="s",
    )


def _wait_and_transfer() -> Panel:
    duration = mean_of(f"{_DURATION}_sum", f"{_DURATION}_count", OF_GROUPS)
    wait = mean_of("torchdist_waited_seconds_total", "torchdist_arrivals_compared_total", OF_GROUPS)
    return stacked(
        About(
            "Wait against transfer",
            "Mean over all calls of the selected groups: the wait for the last rank of the node, and the transfer. "
            "A long wait is bad and caused by a rank; a long transfer is caused by the network or by the size.",
            "s",
            _NO_CALLS,
        ),
        [
            Query(wait, "wait for the last rank"),
            Query(f"clamp_min({duration} - ({wait} or 0 * ({duration})), 0)", "transfer and the rest"),
        ],
    )


def _comes_last() -> Panel:
    return bars(
        About(
            "Last to arrive",
            "Share of the compared collectives in which the rank was the last on its node, over five minutes. One rank "
            "far above the others is bad if other ranks lose time to it.",
            "percentunit",
            _NOT_COMPARED,
        ),
        Query(
            largest(_BARS, f"job_run_group_rank:torchdist_last_arrival_share:rate5m{{{OF_MEMBERS}}}", "group, rank"),
            "rank {{rank}} in {{group}}",
        ),
    )


def _makes_wait() -> Panel:
    return bars(
        About(
            "Time that the others waited for a rank",
            "Share of time in which the other ranks of the node waited for this rank alone, over five minutes. From "
            "10 % on, the rank is a straggler.",
            "percentunit",
            _NOT_COMPARED,
        ),
        Query(
            largest(_BARS, f"job_run_group_rank:torchdist_lateness_share:rate5m{{{OF_MEMBERS}}}", "group, rank"),
            "rank {{rank}} in {{group}}",
        ),
        _STRAGGLER,
    )


def _bandwidth(kind: str) -> Panel:
    meaning = {
        "algorithm": "Total size divided by the duration of the operation: algbw of nccl-tests.",
        "bus": "Algorithm bandwidth corrected for the group's size and the operation, so that it is comparable with "
        "the speed of a link: busbw of nccl-tests.",
    }
    rule = f"job_run_group_operation_message_size:torchdist_{kind}_bandwidth_bytes:rate1m"
    return lines(
        About(
            f"{kind.capitalize()} bandwidth",
            f"{meaning[kind]} Mean of the selected groups, by the size that a rank contributes. Falling for the same "
            "operation and size is bad.",
            "Bps",
            "no all_reduce, gather, scatter of shares or all_to_all has ended",
        ),
        [
            Query(
                f"avg by (operation, message_size) ({rule}{{{OF_OPERATIONS}}})",
                "{{operation}} {{message_size}}",
            )
        ],
    )


def _calls() -> Panel:
    return lines(
        About(
            "Operations a second",
            "Operations that the selected ranks enter per second, in total. Zero while the job should train is bad.",
            "ops",
            "no operation",
        ),
        [Query(f"sum by (operation) ({rate('torchdist_operations_total', OF_MEMBERS_OPERATIONS)})", "{{operation}}")],
    )


def _bytes() -> Panel:
    return lines(
        About(
            "Bytes a second",
            "Bytes that the selected ranks contribute per second, in total. A fall without a change of the model "
            "means that the job has slowed down.",
            "Bps",
            "no operation",
        ),
        [
            Query(
                f"sum by (operation) ({rate('torchdist_message_bytes_total', OF_MEMBERS_OPERATIONS)})", "{{operation}}"
            )
        ],
    )
