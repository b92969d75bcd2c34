"""Every dashboard opens as it should, and every panel describes what it shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.grafana.queries import DASHBOARDS, panels, used_variables

UIDS = {"torchdist-job", "torchdist-collective", "torchdist-stall", "torchdist-numeric", "torchdist-parts"}
OF_GRAFANA = {"__rate_interval", "__range", "__interval", "__value", "__all"}
ONLY_PASSED_ON = {"jaeger", "jaeger_url"}
"""Dashboards without a trace to show, which link to the ones that have traces."""


@pytest.fixture(params=DASHBOARDS, ids=lambda path: path.stem)
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A dashboard."""
    path: Path = request.param
    return json.loads(path.read_text(encoding="utf-8"))


def test_all_dashboards_are_there() -> None:
    """The three dashboards, by the names that links to them use."""
    assert {json.loads(path.read_text())["uid"] for path in DASHBOARDS} == UIDS


def test_it_opens_as_it_should(document: dict[str, Any]) -> None:
    """A dashboard opens with the last half hour, refreshed automatically."""
    assert document["time"] == {"from": "now-30m", "to": "now"}
    assert (document["refresh"], document["timezone"], document["tags"]) == ("5s", "browser", ["torchdist"])


def test_panels_describe_what_they_show(document: dict[str, Any]) -> None:
    """Every panel has a title, a description, a unit, and a text for when it is empty."""
    for panel in panels(document):
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["title"] and defaults["unit"] and defaults["noValue"], panel["title"]
        assert re.fullmatch(r"[A-Z].+\.", panel["description"]), panel["title"]


def test_panels_are_distinguishable(document: dict[str, Any]) -> None:
    """Ids are unique in a dashboard, and titles and queries too."""
    ids = [panel["id"] for panel in document["panels"]]
    titles = [panel["title"] for panel in panels(document)]
    assert len(set(ids)) == len(ids)
    assert len(set(titles)) == len(titles)
    for panel in panels(document):
        refs = [target["refId"] for target in panel["targets"]]
        assert refs and len(set(refs)) == len(refs), panel["title"]


def test_colors_mean_what_they_mean_on_the_live_page(document: dict[str, Any]) -> None:
    """Red is bad, yellow deserves attention, green is good; a value that is neither has no color of a state."""
    for panel in panels(document):
        steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
        colors = [step["color"] for step in steps]
        assert colors in ([], ["text"], ["blue"], ["green", "red"], ["green", "yellow", "red"]), panel["title"]
        limits = [step["value"] for step in steps[1:]]
        assert sorted(set(limits)) == limits, panel["title"]


def test_panels_do_not_overlap(document: dict[str, Any]) -> None:
    """No cell of the grid belongs to two panels, and none lies beyond its 24 columns."""
    cells = [
        (x, y)
        for grid in (panel["gridPos"] for panel in document["panels"])
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23


def test_variables_exist(document: dict[str, Any]) -> None:
    """Every variable that a query, a link or another variable uses is the dashboard's, and all of these are used."""
    defined = [variable["name"] for variable in document["templating"]["list"]]
    used = used_variables(json.dumps(document)) - OF_GRAFANA
    assert set(defined) - ONLY_PASSED_ON <= used <= set(defined)
    for place, variable in enumerate(document["templating"]["list"]):
        assert used_variables(variable["query"]) - OF_GRAFANA <= set(defined[:place]), "filled in from top to bottom"


def test_links_lead_somewhere(document: dict[str, Any]) -> None:
    """Each dashboard links to all others, with the same variables and time range."""
    targets = {link["url"].removeprefix("/d/") for link in document["links"]}
    assert targets == UIDS - {document["uid"]}
    assert all(link["includeVars"] and link["keepTime"] for link in document["links"])


def test_traces_can_be_opened() -> None:
    """A cell with a trace id links to Jaeger; there are such cells."""
    found = 0
    for path in DASHBOARDS:
        for panel in panels(json.loads(path.read_text(encoding="utf-8"))):
            columns = {
                override["matcher"]["options"]: override["properties"] for override in panel["fieldConfig"]["overrides"]
            }
            if "Trace" not in columns:
                continue
            found += 1
            [links] = [one["value"] for one in columns["Trace"] if one["id"] == "links"]
            assert [link["url"] for link in links] == ["${jaeger_url}/trace/${__value.raw}"]
    assert found == 4
