"""Builders for the dashboards' kinds of panels. Each requires a title, a description, a unit and a text for no data.

All other options have Grafana's defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Final, TypeAlias, TypeVar

from grafana_foundation_sdk.builders import bargauge, heatmap, stat, table, timeseries
from grafana_foundation_sdk.builders.common import GraphThresholdsStyleConfig, StackingConfig, TableSortByFieldState
from grafana_foundation_sdk.builders.dashboard import ThresholdsConfig
from grafana_foundation_sdk.builders.heatmap import CellValues, FilterValueRange, HeatmapColorOptions, YAxisConfig
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.models.common import GraphThresholdsStyleMode, StackingMode, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import (
    DataTransformerConfig,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode, HeatmapColorScale
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana.variables import PROMETHEUS

Panel: TypeAlias = stat.Panel | timeseries.Panel | table.Panel | heatmap.Panel | bargauge.Panel

_P = TypeVar("_P", stat.Panel, timeseries.Panel, table.Panel, heatmap.Panel, bargauge.Panel)

GOOD: Final = "green"
WARN: Final = "yellow"
BAD: Final = "red"
"""Colors of states, as in the terminal and on the live page: good; deserves attention, such as a wait; bad."""
PLAIN_TEXT: Final = "text"
PLAIN_BAR: Final = "blue"
"""Colors of values that are neither good nor bad: that of text, and that of all_reduce on the live page."""

FULL: Final = 24
HALF: Final = 12
"""Widths of panels, in columns of Grafana's grid."""


@dataclass(frozen=True, slots=True)
class About:
    """The texts of a panel.

    Attributes:
        title: A few words.
        description: The shown quantity, and which values are bad.
        unit: Grafana's id of a unit.
        empty: Text shown without data.
    """

    title: str
    description: str
    unit: str
    empty: str


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and the name of its series, in which `{{label}}` is replaced by the value of a label."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Thresholds of a panel: a value that deserves attention (None for none), and a bad value."""

    warn: float | None
    bad: float

    def steps(self) -> ThresholdsConfig:
        """Return the thresholds for Grafana: each color with the value from which it applies."""
        steps = [Threshold(color=GOOD)]
        if self.warn is not None:
            steps.append(Threshold(value=self.warn, color=WARN))
        steps.append(Threshold(value=self.bad, color=BAD))
        return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _plain(color: str) -> ThresholdsConfig:
    """Return thresholds without a bad value."""
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps([Threshold(color=color)])


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        field: The shown label, or `Value` (with several queries `Value #A`, `Value #B`, …).
        title: Heading of the column.
        unit: Grafana's id of a unit, if different from the panel's.
        links: Data links of its cells.
    """

    field: str
    title: str
    unit: str = ""
    links: Sequence[dict[str, object]] = ()


def number(about: About, query: Query, limits: Limits | None = None, span: int = 4) -> stat.Panel:
    """Return a panel with one number, and a sparkline behind it."""
    panel = _described(stat.Panel(), about, span=span, height=4)
    panel.thresholds(limits.steps() if limits else _plain(PLAIN_TEXT))
    return panel.with_target(_over_time("A", query))


def lines(about: About, queries: Sequence[Query], limits: Limits | None = None, span: int = HALF) -> timeseries.Panel:
    """Return a panel with lines over time; limits are dashed lines."""
    panel = _described(timeseries.Panel(), about, span=span, height=8).axis_soft_min(0).fill_opacity(0)
    for ref, query in zip(ascii_uppercase, queries, strict=False):
        panel.with_target(_over_time(ref, query))
    if limits:
        panel.thresholds(limits.steps())
        panel.thresholds_style(GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED))
    return panel


def stacked(about: About, queries: Sequence[Query], span: int = HALF) -> timeseries.Panel:
    """Return a panel with stacked areas over time, for series with a meaningful sum."""
    return lines(about, queries, span=span).fill_opacity(40).stacking(StackingConfig().mode(StackingMode.NORMAL))


def rows(
    about: About,
    queries: Sequence[Query],
    columns: Sequence[Column],
    sort: str = "",
    span: int = FULL,
    height: int = 8,
) -> table.Panel:
    """Return a table of current values; results with equal labels are merged into one row.

    Args:
        about: The texts of the panel.
        queries: Queries for the rows.
        columns: The columns to show, from left to right.
        sort: Heading of the column to sort by, largest values first; '' for the order of the queries.
        span: Width of the panel.
        height: Height of the panel, in rows of Grafana's grid of 30 pixels.
    """
    panel = _described(table.Panel(), about, span=span, height=height)
    for ref, query in zip(ascii_uppercase, queries, strict=False):
        panel.with_target(_now(ref, query).format(PromQueryFormat.TABLE))
    if len(queries) > 1:
        panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
    panel.with_transformation(_only(columns, queries))
    for column in columns:
        properties = [DynamicConfigValue(id_val="unit", value=column.unit)] if column.unit else []
        properties += [DynamicConfigValue(id_val="links", value=list(column.links))] if column.links else []
        if properties:
            panel.override_by_name(column.title, properties)
    if sort:
        panel.sort_by([TableSortByFieldState().display_name(sort).desc(True)])
    return panel


def bars(about: About, query: Query, limits: Limits | None = None, span: int = HALF) -> bargauge.Panel:
    """Return a panel with a bar for the current value of each series, longest first."""
    panel = _described(bargauge.Panel(), about, span=span, height=8).min(0)
    return panel.thresholds(limits.steps() if limits else _plain(PLAIN_BAR)).with_target(_now("A", query))


def heat_by_row(about: About, queries: Sequence[Query], hottest: float, span: int = FULL) -> heatmap.Panel:
    """Return a heat map with a row for each series, the first query on top; higher values are hotter."""
    panel = _heat(
        about, _colors(HeatmapColorScale.LINEAR).min(0).max(hottest), YAxisConfig().reverse(True), span
    ).height(14)
    panel.filter_values(FilterValueRange().le(-1))  # zero is a value here: the rank is in no operation
    for ref, query in zip(ascii_uppercase, queries, strict=False):
        panel.with_target(_over_time(ref, query))
    return panel


def heat_of_buckets(about: About, expr: str, axis_unit: str, span: int = HALF) -> heatmap.Panel:
    """Return a heat map of a histogram over time; fuller buckets are hotter."""
    panel = _heat(about, _colors(HeatmapColorScale.EXPONENTIAL), YAxisConfig().unit(axis_unit), span)
    return panel.with_target(_over_time("A", Query(expr, "{{le}}")).format(PromQueryFormat.HEATMAP))


def _heat(about: About, colors: HeatmapColorOptions, axis: YAxisConfig, span: int) -> heatmap.Panel:
    panel = _described(heatmap.Panel(), about, span=span, height=8).calculate(False)
    return panel.color(colors).cell_values(CellValues().unit(about.unit)).y_axis(axis).mode(TooltipDisplayMode.SINGLE)


def _colors(scale: HeatmapColorScale) -> HeatmapColorOptions:
    return HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64).scale(scale)


def _described(panel: _P, about: About, *, span: int, height: int) -> _P:
    panel.title(about.title).description(about.description).unit(about.unit).no_value(about.empty)
    panel.datasource(PROMETHEUS).span(span).height(height)
    return panel


def _over_time(ref: str, query: Query) -> Dataquery:
    return Dataquery().expr(query.expr).legend_format(query.legend).ref_id(ref).range()


def _now(ref: str, query: Query) -> Dataquery:
    return Dataquery().expr(query.expr).legend_format(query.legend).ref_id(ref).instant()


def _only(columns: Sequence[Column], queries: Sequence[Query]) -> DataTransformerConfig:
    values = ["Value"] if len(queries) == 1 else [f"Value #{ref}" for ref in ascii_uppercase[: len(queries)]]
    shown = [column.field for column in columns]
    return DataTransformerConfig(
        id_val="organize",
        options={
            "excludeByName": {field: True for field in ("Time", *values) if field not in shown},
            "indexByName": {field: place for place, field in enumerate(shown)},
            "renameByName": {column.field: column.title for column in columns},
        },
    )
