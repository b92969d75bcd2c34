"""The same dashboards in version 2 of Grafana's schema, as resources of its API (`dashboard.grafana.app/v2beta1`).

Grafana 12 and 13 read both. Version 2 is for those who keep dashboards as resources, with Git Sync, `grafanactl` or an
operator, and for layouts that only it has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as v1
from grafana_foundation_sdk.models import dashboardv2beta1 as v2

API: Final = "dashboard.grafana.app/v2beta1"
_VARIABLE_QUERY: Final = "PrometheusVariableQueryEditor-VariableQuery"
"""The name that Grafana's own editor gives to the query of a variable."""
_REFRESH: Final = {
    v1.VariableRefresh.NEVER: v2.VariableRefresh.NEVER,
    v1.VariableRefresh.ON_DASHBOARD_LOAD: v2.VariableRefresh.ON_DASHBOARD_LOAD,
    v1.VariableRefresh.ON_TIME_RANGE_CHANGED: v2.VariableRefresh.ON_TIME_RANGE_CHANGED,
}
_CURSOR: Final = {
    v1.DashboardCursorSync.OFF: v2.DashboardCursorSync.OFF,
    v1.DashboardCursorSync.CROSSHAIR: v2.DashboardCursorSync.CROSSHAIR,
    v1.DashboardCursorSync.TOOLTIP: v2.DashboardCursorSync.TOOLTIP,
}


@dataclass(frozen=True, slots=True)
class _Heading:
    """A row of a dashboard in version 1, and the panels below it."""

    title: str
    y: int
    panels: Sequence[Mapping[str, Any]]


def resource_json(document: Mapping[str, Any]) -> str:
    """Return the resource's JSON text of a dashboard in version 1; deterministic."""
    spec = json.loads(json.dumps(_spec(document), cls=JSONEncoder))
    # Two fields that the SDK always writes: one hides a link in a menu, the other is unknown to Grafana 12.3.
    for link in spec["links"]:
        del link["placement"]
    for variable in spec["variables"]:
        variable["spec"].pop("regexApplyTo", None)
    resource = {"apiVersion": API, "kind": "Dashboard", "metadata": {"name": document["uid"]}, "spec": spec}
    return json.dumps(resource, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _spec(document: Mapping[str, Any]) -> v2.Dashboard:
    headings = list(_headings(document["panels"]))
    return v2.Dashboard(
        title=document["title"],
        description=document["description"],
        tags=document["tags"],
        editable=document["editable"],
        cursor_sync=_CURSOR[v1.DashboardCursorSync(document["graphTooltip"])],
        links=[v2.DashboardLink.from_json(link) for link in document["links"]],
        variables=[_variable(variable) for variable in document["templating"]["list"]],
        time_settings=v2.TimeSettingsSpec(
            timezone=document["timezone"],
            from_val=document["time"]["from"],
            to=document["time"]["to"],
            auto_refresh=document["refresh"],
        ),
        elements={_name(panel): _element(panel) for heading in headings for panel in heading.panels},
        layout=v2.RowsLayoutKind(v2.RowsLayoutSpec([_row(heading) for heading in headings])),
    )


def _headings(panels: Sequence[Mapping[str, Any]]) -> Iterator[_Heading]:
    """Yield the rows. In version 1, the panels of an open row follow it in the list."""
    starts = [place for place, panel in enumerate(panels) if panel["type"] == "row"]
    for start, end in zip(starts, [*starts[1:], len(panels)], strict=True):
        row = panels[start]
        yield _Heading(row["title"], row["gridPos"]["y"] + row["gridPos"]["h"], panels[start + 1 : end])


def _row(heading: _Heading) -> v2.RowsLayoutRowKind:
    items = [
        v2.GridLayoutItemKind(
            v2.GridLayoutItemSpec(
                x=panel["gridPos"]["x"],
                y=panel["gridPos"]["y"] - heading.y,
                width=panel["gridPos"]["w"],
                height=panel["gridPos"]["h"],
                element=v2.ElementReference(_name(panel)),
            )
        )
        for panel in heading.panels
    ]
    layout = v2.GridLayoutKind(v2.GridLayoutSpec(items))
    return v2.RowsLayoutRowKind(v2.RowsLayoutRowSpec(title=heading.title, collapse=False, layout=layout))


def _name(panel: Mapping[str, Any]) -> str:
    return f"panel-{panel['id']}"


def _element(panel: Mapping[str, Any]) -> v2.PanelKind:
    queries = [_query(target, panel["datasource"]) for target in panel["targets"]]
    transformations = [
        v2.TransformationKind(one["id"], v2.DataTransformerConfig(one["id"], options=one["options"]))
        for one in panel.get("transformations", ())
    ]
    fields = v2.FieldConfigSource.from_json(panel["fieldConfig"])
    return v2.PanelKind(
        v2.PanelSpec(
            id_val=panel["id"],
            title=panel["title"],
            description=panel["description"],
            data=v2.QueryGroupKind(v2.QueryGroupSpec(queries, transformations)),
            viz_config=v2.VizConfigKind(panel["type"], spec=v2.VizConfigSpec(panel["options"], fields)),
        )
    )


def _query(target: Mapping[str, Any], source: Mapping[str, str]) -> v2.PanelQueryKind:
    spec = {key: value for key, value in target.items() if key != "refId"}
    return v2.PanelQueryKind(v2.PanelQuerySpec(_data_query(source, spec), target["refId"]))


def _data_query(source: Mapping[str, str], spec: object) -> v2.DataQueryKind:
    datasource = v2.Dashboardv2beta1DataQueryKindDatasource(source["uid"])
    return v2.DataQueryKind(source["type"], datasource=datasource, spec=spec)


def _variable(variable: Mapping[str, Any]) -> v2.VariableKind:
    match variable["type"]:
        case "datasource":
            return v2.DatasourceVariableKind(
                v2.DatasourceVariableSpec(
                    variable["name"],
                    variable["query"],
                    refresh=v2.VariableRefresh.ON_DASHBOARD_LOAD,
                    current=v2.VariableOption(text="", value=""),
                    label=variable["label"],
                )
            )
        case "textbox":
            return v2.TextVariableKind(
                v2.TextVariableSpec(
                    variable["name"],
                    v2.VariableOption.from_json(variable["current"]),
                    variable["query"],
                    label=variable["label"],
                    description=variable["description"],
                )
            )
        case "query":
            return v2.QueryVariableKind(_query_variable(variable))
        case other:
            raise ValueError(f"no variable of version 2 for the type {other} of {variable['name']}")


def _query_variable(variable: Mapping[str, Any]) -> v2.QueryVariableSpec:
    query = {"query": variable["query"], "refId": _VARIABLE_QUERY}
    return v2.QueryVariableSpec(
        name=variable["name"],
        label=variable["label"],
        current=v2.VariableOption.from_json(variable.get("current", {"text": "", "value": ""})),
        query=_data_query(variable["datasource"], query),
        definition=variable["query"],
        regex=variable.get("regex", ""),
        refresh=_REFRESH[v1.VariableRefresh(variable["refresh"])],
        sort=v2.VariableSort[v1.VariableSort(variable["sort"]).name],
        multi=variable["multi"],
        include_all=variable["includeAll"],
        all_value=variable.get("allValue"),
    )
