"""The variables of the dashboards. They are shared, so that links between dashboards keep the selection."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders.dashboard import DatasourceVariable, QueryVariable, TextBoxVariable
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    VariableModel,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from grafana.promql import OF_GROUPS, RUN

PROMETHEUS: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
JAEGER_UI: Final = "http://localhost:16686"

# Uses a recording rule with one series per run: `torchdist_up` has one per rank, too many for a week of 1,000 ranks.
_SEEN: Final = 'max by (run) (timestamp(job_run:torchdist_blocked_share:rate1m{job="$job"}))[$__range:1m]'
# The run seen last comes first; of several live runs, the one that started last.
_NEWEST_RUN_FIRST: Final = f"query_result(sort_desc(10 * max_over_time({_SEEN}) + min_over_time({_SEEN})))"


def of_every_dashboard() -> list[Builder[VariableModel]]:
    """Return the variables of all dashboards: data sources, job, run, group and rank."""
    return [
        DatasourceVariable("datasource").label("Prometheus").type("prometheus"),
        TextBoxVariable("jaeger_url")
        .label("Jaeger's address")
        .description("URL of Jaeger's pages, as seen by a browser.")
        .default_value(JAEGER_UI)
        .current(VariableOption(text=JAEGER_UI, value=JAEGER_UI)),
        _query("job", "Job", "label_values(torchdist_up, job)").sort(VariableSort.ALPHABETICAL_ASC),
        _query("run", "Run", _NEWEST_RUN_FIRST).regex('/run="([^"]+)"/').sort(VariableSort.DISABLED),
        _with_all("group", "Group", f"label_values(torchdist_stalled{{{RUN}}}, group)", VariableSort.ALPHABETICAL_ASC),
        _with_all("rank", "Rank", f"label_values(torchdist_up{{{RUN}}}, rank)", VariableSort.NUMERICAL_ASC),
    ]


def operation() -> Builder[VariableModel]:
    """Return the variable for operations that the selected groups have called."""
    query = f"label_values(torchdist_operation_duration_seconds_count{{{OF_GROUPS}}}, operation)"
    return _with_all("operation", "Operation", query, VariableSort.ALPHABETICAL_ASC)


def _query(name: str, label: str, query: str) -> QueryVariable:
    return (
        QueryVariable(name)
        .label(label)
        .datasource(PROMETHEUS)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )


def _with_all(name: str, label: str, query: str, sort: VariableSort) -> QueryVariable:
    return (
        _query(name, label, query)
        .sort(sort)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(selected=True, text=["All"], value=["$__all"]))
    )
