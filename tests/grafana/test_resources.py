"""Dashboards in version 2 of the schema show what those in version 1 show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.grafana.queries import DASHBOARDS, panels
from tests.support.repository import REPOSITORY

RESOURCES = REPOSITORY / "grafana" / "resources"


@pytest.fixture(params=DASHBOARDS, ids=lambda path: path.stem)
def both(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    """A dashboard in both versions."""
    path: Path = request.param
    resource = json.loads((RESOURCES / path.name).read_text(encoding="utf-8"))
    return json.loads(path.read_text(encoding="utf-8")), resource


def test_every_dashboard_has_a_resource() -> None:
    """There are the same files in both folders."""
    assert {path.name for path in DASHBOARDS} == {path.name for path in RESOURCES.glob("*.json")}


def test_it_is_the_same_dashboard(both: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Name, title, links and time range are the same, so that links between dashboards work."""
    one, two = both
    assert two["metadata"]["name"] == one["uid"]
    for key in ("title", "description", "tags", "editable", "links"):
        assert two["spec"][key] == one[key]
    times = two["spec"]["timeSettings"]
    assert (times["from"], times["to"], times["autoRefresh"]) == (
        one["time"]["from"],
        one["time"]["to"],
        one["refresh"],
    )


def test_panels_are_the_same(both: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Each panel has the same texts, options, fields, queries and transformations."""
    one, two = both
    elements = {element["spec"]["id"]: element["spec"] for element in two["spec"]["elements"].values()}
    assert len(elements) == len(list(panels(one)))
    for panel in panels(one):
        element = elements[panel["id"]]
        data, shown = element["data"]["spec"], element["vizConfig"]
        assert (element["title"], element["description"]) == (panel["title"], panel["description"])
        assert (shown["group"], shown["spec"]["options"]) == (panel["type"], panel["options"])
        assert shown["spec"]["fieldConfig"] == panel["fieldConfig"], panel["title"]
        names = [query["spec"]["refId"] for query in data["queries"]]
        assert names == [target["refId"] for target in panel["targets"]]
        for query, target in zip(data["queries"], panel["targets"], strict=True):
            assert query["spec"]["query"]["spec"] | {"refId": target["refId"]} == target
            assert query["spec"]["query"]["datasource"]["name"] == panel["datasource"]["uid"]
        transformations = [(one["kind"], one["spec"]["options"]) for one in data["transformations"]]
        assert transformations == [(one["id"], one["options"]) for one in panel.get("transformations", [])]


def test_panels_are_at_the_same_places(both: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Each heading has its panels, in the same places below it."""
    one, two = both
    places: dict[int, tuple[str, dict[str, int]]] = {}
    title, top = "", 0
    for panel in one["panels"]:
        grid = panel["gridPos"]
        if panel["type"] == "row":
            title, top = panel["title"], grid["y"] + grid["h"]
        else:
            place = {"x": grid["x"], "y": grid["y"] - top, "width": grid["w"], "height": grid["h"]}
            places[panel["id"]] = (title, place)
    found = {
        two["spec"]["elements"][item["spec"]["element"]["name"]]["spec"]["id"]: (
            row["spec"]["title"],
            {key: item["spec"][key] for key in ("x", "y", "width", "height")},
        )
        for row in two["spec"]["layout"]["spec"]["rows"]
        for item in row["spec"]["layout"]["spec"]["items"]
    }
    assert found == places


def test_variables_are_the_same(both: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """The same variables are filled in from the same queries, in the same order."""
    one, two = both
    kinds = {"DatasourceVariable": "datasource", "TextVariable": "textbox", "QueryVariable": "query"}
    found = [
        (kinds[variable["kind"]], variable["spec"]["name"], variable["spec"]["label"], _query(variable))
        for variable in two["spec"]["variables"]
    ]
    expected = [
        (variable["type"], variable["name"], variable["label"], variable["query"])
        for variable in one["templating"]["list"]
    ]
    assert found == expected


def _query(variable: dict[str, Any]) -> str:
    spec = variable["spec"]
    match variable["kind"]:
        case "QueryVariable":
            return spec["query"]["spec"]["query"]
        case "DatasourceVariable":
            return spec["pluginId"]
        case _:
            return spec["query"]
