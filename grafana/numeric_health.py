"""Values that are not finite, results that differ, norms and loss scaling; empty where values are not looked at."""

from __future__ import annotations

from typing import Final

from grafana.dashboard import Section
from grafana.links import to_the_trace
from grafana.panels import HALF, About, Column, Limits, Panel, Query, lines, number, rows
from grafana.promql import OF_GROUPS, OF_MEMBERS_OPERATIONS, OF_RANKS, ROWS, WORST, largest, rate, worst_in_range

_OFF: Final = "no value was looked at: see OTEL_PYTHON_TORCHDIST_NUMERICS"
_SERIES: Final = "rank, group, operation"
_LEGEND: Final = "rank {{rank}}, {{operation}} in {{group}}"
_THIRD: Final = 8
_ANY: Final = Limits(warn=1, bad=1)


def sections() -> list[Section]:
    """The dashboard's rows."""
    return [
        Section("Findings", (_non_finite(), _sampled(), _skipped(), _findings())),
        Section("Values", (_norms("norm"), _norms("absmax"), _outliers(), _headroom())),
        Section("Loss scaling", (_skips_over_time(), _scale())),
    ]


def _non_finite() -> Panel:
    return number(
        About(
            "Operations with a bad value",
            "Operations of all ranks with an input that was infinite or not a number, in the time range. Any is bad, "
            "unless a gradient scaler has left out the step.",
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
            "Operations of all ranks whose statistics were taken, a second. Zero means that nothing is known here.",
            "ops",
            _OFF,
        ),
        Query(f"sum({rate('torchdist_sampled_operations_total', OF_RANKS)})", "operations a second"),
        span=_THIRD,
    )


def _skipped() -> Panel:
    return number(
        About(
            "Steps left out by a scaler",
            "The most that one rank has left out in the time range. A few are usual, while a scale is found; many in a "
            "row are bad.",
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
            "Ranks that were the first with a value that is not finite (non_finite), and ranks whose results differ "
            "where all must have the same (diverged). Any row is bad.",
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
            f"{meaning[kind]}, of the {WORST} that were the largest in the time range. A line that climbs "
            "away from the others is bad: values explode there first.",
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
            f"Norm of a rank's inputs as a multiple of the median of its group; the {ROWS} largest. A rank that is far "
            "above 1 for long has other data or other weights than the rest. Ranks that shard a model differ by right.",
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
            "How often the largest input of the newest sampled operation could be doubled before it overflowed its "
            "type, of the rank with least. Below 1 the next sum of two such numbers may be infinite.",
            "short",
            _OFF,
        ),
        [Query(f"min by (operation) (torchdist_input_headroom{{{OF_MEMBERS_OPERATIONS}}})", "{{operation}}")],
    )


def _scale() -> Panel:
    return lines(
        About(
            "Loss scale",
            "The scale of gradient scalers, of the rank with the smallest. It grows slowly and is halved by overflows; "
            "a line that goes on falling is bad.",
            "short",
            "no gradient scaler was used, or its scale is not known",
        ),
        [Query(f"min(torchdist_amp_scale{{{OF_RANKS}}})", "smallest scale")],
    )


def _skips_over_time() -> Panel:
    return lines(
        About(
            "Steps left out over time",
            "Steps that gradient scalers leave out, a second, of the rank with most. Peaks that come back are usual; a "
            "line that stays up is bad.",
            "ops",
            "no step was left out",
        ),
        [Query(f"max({rate('torchdist_amp_skipped_steps_total', OF_RANKS)})", "steps a second")],
    )
