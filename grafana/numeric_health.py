"""The dashboard of values: non-finite values, differing results, norms, loss scaling. Empty without value checks."""

from __future__ import annotations

from typing import Final

from grafana.dashboard import Section
from grafana.links import to_the_trace
from grafana.panels import HALF, About, Column, Limits, Panel, Query, lines, number, rows
from grafana.promql import OF_GROUPS, OF_MEMBERS_OPERATIONS, OF_RANKS, ROWS, WORST, largest, rate, worst_in_range

_OFF: Final = "values are not checked: see OTEL_PYTHON_TORCHDIST_NUMERICS"
_SERIES: Final = "rank, group, operation"
_LEGEND: Final = "rank {{rank}}, {{operation}} in {{group}}"
_THIRD: Final = 8
_ANY: Final = Limits(warn=None, bad=1)


def sections() -> list[Section]:
    """Return the rows of the dashboard."""
    return [
        Section("Findings", (_findings(), _non_finite(), _sampled(), _skipped())),
        Section("Values", (_norms("norm"), _norms("absmax"), _outliers(), _headroom())),
        Section("Loss scaling", (_skips_over_time(), _scale())),
    ]


def _non_finite() -> Panel:
    return number(
        About(
            "Operations with a bad value",
            "Operations of all ranks with an infinite or NaN input, in the time range. Any is bad, unless a gradient "
            "scaler has skipped the step.",
            "short",
            _OFF,
        ),
        Query(f"sum(increase(torchdist_non_finite_operations_total{{{OF_RANKS}}}[$__range]))", "operations"),
        _ANY,
        span=_THIRD,
    )


def _sampled() -> Panel:
    return number(
        About(
            "Operations sampled",
            "Operations per second with statistics, of all ranks. Zero means that this dashboard has no data.",
            "ops",
            _OFF,
        ),
        Query(f"sum({rate('torchdist_sampled_operations_total', OF_RANKS)})", "operations a second"),
        span=_THIRD,
    )


def _skipped() -> Panel:
    return number(
        About(
            "Steps skipped by a scaler",
            "Steps skipped in the time range, of the rank with the most. A few are usual, while the scaler searches "
            "for a scale; many in a row are bad.",
            "short",
            "no step was left out",
        ),
        Query(f"max(increase(torchdist_amp_skipped_steps_total{{{OF_RANKS}}}[$__range]))", "steps"),
        span=_THIRD,
    )


def _findings() -> Panel:
    labels = ("verdict", "ranks", "operation", "group", "trace_id")
    by = ", ".join(labels)
    where = f'{OF_GROUPS}, verdict=~"non_finite|diverged"'
    times = f"timestamp(torchdist_finding_info{{{where}}})[$__range:5s]"
    return rows(
        About(
            "Findings",
            "The first ranks with a non-finite value (non_finite), and ranks with different results although "
            "all must be equal (diverged). Any row is bad.",
            "none",
            "no finding",
        ),
        [Query(f"1000 * min by ({by}) (min_over_time({times}))", "{{verdict}}: ranks {{ranks}}, first seen")],
        [
            Column("Value", "First seen", unit="dateTimeAsLocal"),
            *(Column(label, label.capitalize()) for label in labels if label != "trace_id"),
            Column("trace_id", "Trace", links=to_the_trace()),
        ],
        sort="First seen",
    )


def _norms(kind: str) -> Panel:
    meaning = {
        "norm": "L2 norm of the inputs of the newest sampled operation",
        "absmax": "Largest magnitude in the inputs of the newest sampled operation",
    }
    series = f"torchdist_input_{kind}{{{OF_MEMBERS_OPERATIONS}}}"
    return lines(
        About(
            f"Input {kind}",
            f"{meaning[kind]}, for the {WORST} largest in the time range. A line that climbs away from the others is "
            "bad: values explode there first.",
            "short",
            _OFF,
        ),
        [Query(worst_in_range(WORST, series, _SERIES), _LEGEND)],
    )


def _outliers() -> Panel:
    series = f"torchdist_input_norm{{{OF_MEMBERS_OPERATIONS}}}"
    ratio = f"{series} / on (group, operation) group_left () (quantile by (group, operation) (0.5, {series}) > 0)"
    return rows(
        About(
            "Norms against the other ranks",
            f"Norm of a rank's inputs as a multiple of its group's median; the {ROWS} largest. A rank far above 1 for "
            "long has other data or other weights than its peers. Ranks that shard a model differ legitimately.",
            "none",
            _OFF,
        ),
        [Query(largest(ROWS, ratio, _SERIES), _LEGEND)],
        [
            Column("rank", "Rank"),
            Column("operation", "Operation"),
            Column("group", "Group"),
            Column("Value", "Times the median"),
        ],
        sort="Times the median",
        span=HALF,
    )


def _headroom() -> Panel:
    return lines(
        About(
            "Headroom",
            "Number of times that the largest input of the newest sampled operation can be doubled before it overflows "
            "its type, on the rank with the least. Below 1 the sum of two such numbers may be infinite.",
            "short",
            _OFF,
        ),
        [Query(f"min by (operation) (torchdist_input_headroom{{{OF_MEMBERS_OPERATIONS}}})", "{{operation}}")],
    )


def _scale() -> Panel:
    return lines(
        About(
            "Loss scale",
            "Smallest scale of all gradient scalers. It grows slowly and is halved by overflows; a line that keeps "
            "falling is bad.",
            "short",
            "no gradient scaler was used, or its scale is unknown",
        ),
        [Query(f"min(torchdist_amp_scale{{{OF_RANKS}}})", "smallest scale")],
    )


def _skips_over_time() -> Panel:
    return lines(
        About(
            "Skipped steps over time",
            "Steps skipped by gradient scalers per second, of the rank with the most. Recurring peaks are usual; a "
            "line that stays up is bad.",
            "ops",
            "no step was left out",
        ),
        [Query(f"max({rate('torchdist_amp_skipped_steps_total', OF_RANKS)})", "steps a second")],
    )
