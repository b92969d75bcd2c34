"""Builders for the kinds of panels that the dashboards use; each requires a title, a unit and a text for no data.

Grafana has defaults for everything that is not set here.
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
from grafana_foundation_sdk.models.common import GraphTresholdsStyleMode, StackingMode
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

GREEN: Final = "green"
ORANGE: Final = "orange"
RED: Final = "red"

FULL: Final = 24
HALF: Final = 12
"""Widths, in columns of Grafana's grid."""


@dataclass(frozen=True, slots=True)
class About:
    """The texts of every panel.

    Attributes:
        title: A few words.
        description: What it shows, and which values are bad.
        unit: Grafana's id of a unit.
        empty: Text for when there is nothing to show.
    """

    title: str
    description: str
    unit: str
    empty: str


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and the name of its series: `{{label}}` stands for a label's value."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Limits:
    """The value that deserves attention, and the value that is bad."""

    warn: float | None
    bad: float

    def steps(self) -> ThresholdsConfig:
        """As Grafana wants it: each color with the value from which it holds."""
        steps = [Threshold(color=GREEN)]
        if self.warn is not None:
            steps.append(Threshold(value=self.warn, color=ORANGE))
        steps.append(Threshold(value=self.bad, color=RED))
        return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


PLAIN: Final = ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps([Threshold(color=GREEN)])
"""No value is bad."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        field: The label that it shows, or `Value` (with several queries `Value #A`, `Value #B`, ...).
        title: Its heading.
        unit: Grafana's id of a unit, if different from the panel's.
        links: Data links of its cells.
    """

    field: str
    title: str
    unit: str = ""
    links: Sequence[dict[str, object]] = ()


def number(about: About, query: Query, limits: Limits | None = None, span: int = 4) -> stat.Panel:
    """One number, with a sparkline behind it."""
    panel = _described(stat.Panel(), about, span=span, height=4).thresholds(limits.steps() if limits else PLAIN)
    return panel.with_target(_over_time("A", query))


def lines(about: About, queries: Sequence[Query], limits: Limits | None = None, span: int = HALF) -> timeseries.Panel:
    """Lines over time; a limit is a dashed line of its own."""
    panel = _described(timeseries.Panel(), about, span=span, height=8).axis_soft_min(0).fill_opacity(0)
    for ref, query in zip(ascii_uppercase, queries, strict=False):
        panel.with_target(_over_time(ref, query))
    if limits:
        panel.thresholds(limits.steps())
        panel.thresholds_style(GraphThresholdsStyleConfig().mode(GraphTresholdsStyleMode.DASHED))
    return panel


def stacked(about: About, queries: Sequence[Query], span: int = HALF) -> timeseries.Panel:
    """Areas over time, stacked because their sum means something."""
    return lines(about, queries, span=span).fill_opacity(40).stacking(StackingConfig().mode(StackingMode.NORMAL))


def rows(
    about: About, queries: Sequence[Query], columns: Sequence[Column], sort: str = "", span: int = FULL
) -> table.Panel:
    """A table of current values; queries that share labels are merged into one row.

    Args:
        about: The texts of the panel.
        queries: Queries that give the rows.
        columns: The columns shown, from left to right; anything else is left out.
        sort: Heading of the column whose largest values come first; without it the queries' order stays.
        span: Its width.
    """
    panel = _described(table.Panel(), about, span=span, height=8)
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
    """A bar for the current value of each series, the longest first."""
    panel = _described(bargauge.Panel(), about, span=span, height=8).min(0)
    return panel.thresholds(limits.steps() if limits else PLAIN).with_target(_now("A", query))


def heat_by_row(about: About, queries: Sequence[Query], hottest: float, span: int = FULL) -> heatmap.Panel:
    """A row for each series, those of the first query on top; a cell is hotter the higher its value is."""
    panel = _heat(
        about, _colors(HeatmapColorScale.LINEAR).min(0).max(hottest), YAxisConfig().reverse(True), span
    ).height(14)
    panel.filter_values(FilterValueRange().le(-1))  # zero is a value here: the rank is in no operation
    for ref, query in zip(ascii_uppercase, queries, strict=False):
        panel.with_target(_over_time(ref, query))
    return panel


def heat_of_buckets(about: About, expr: str, axis_unit: str, span: int = HALF) -> heatmap.Panel:
    """A histogram over time: the fuller a bucket, the hotter."""
    panel = _heat(about, _colors(HeatmapColorScale.EXPONENTIAL), YAxisConfig().unit(axis_unit), span)
    return panel.with_target(_over_time("A", Query(expr, "{{le}}")).format(PromQueryFormat.HEATMAP))


def _heat(about: About, colors: HeatmapColorOptions, axis: YAxisConfig, span: int) -> heatmap.Panel:
    panel = _described(heatmap.Panel(), about, span=span, height=8).calculate(False)
    return panel.color(colors).cell_values(CellValues().unit(about.unit)).y_axis(axis).show_tooltip()


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
