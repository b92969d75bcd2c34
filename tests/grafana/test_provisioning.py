"""Grafana finds its data sources, and what they link to."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.metrics.definitions import NUMBER_METRICS
from tests.grafana.queries import DASHBOARDS
from tests.grafana.selectors import selectors
from tests.support.repository import REPOSITORY

PROVISIONING = REPOSITORY / "deploy" / "grafana" / "provisioning"


@pytest.fixture(scope="module")
def sources() -> dict[str, dict[str, Any]]:
    """Data sources by uid."""
    files = sorted((PROVISIONING / "datasources").glob("*.yaml"))
    return {one["uid"]: one for path in files for one in yaml.safe_load(path.read_text())["datasources"]}


def test_sources_come_from_the_environment(sources: dict[str, dict[str, Any]]) -> None:
    """Their addresses come from Grafana's environment, and none has a secret."""
    assert {one["url"] for one in sources.values()} == {
        "${PROMETHEUS_URL}",
        "${JAEGER_QUERY_URL}",
        "${ALERTMANAGER_URL}",
    }
    assert not any("secureJsonData" in one or "basicAuth" in one for one in sources.values())


def test_dashboards_have_their_sources(sources: dict[str, dict[str, Any]]) -> None:
    """There is exactly one source of each kind that a dashboard lets the user choose from, so no choice is needed."""
    kinds = [one["type"] for one in sources.values()]
    for path in DASHBOARDS:
        variables = json.loads(path.read_text(encoding="utf-8"))["templating"]["list"]
        chosen = [variable["query"] for variable in variables if variable["type"] == "datasource"]
        assert chosen == ["prometheus"]
        assert all(kinds.count(kind) == 1 for kind in chosen)


def test_sources_lead_to_each_other(sources: dict[str, dict[str, Any]]) -> None:
    """An exemplar leads to its trace, and a span leads to metrics."""
    [exemplars] = sources["torchdist-prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert exemplars == {"name": "trace_id", "datasourceUid": "torchdist-jaeger"}
    assert sources["torchdist-jaeger"]["jsonData"]["tracesToMetrics"]["datasourceUid"] == "torchdist-prometheus"


def test_spans_lead_to_their_metrics(sources: dict[str, dict[str, Any]]) -> None:
    """A span's attributes are matched with the corresponding labels, on metrics that have all of these labels."""
    to_metrics = sources["torchdist-jaeger"]["jsonData"]["tracesToMetrics"]
    labels = {tag["value"] for tag in to_metrics["tags"]}
    assert all(semconv.OTEL_METRIC_ATTRIBUTES[tag["value"]] == tag["key"] for tag in to_metrics["tags"])
    having = {metric.name for metric in NUMBER_METRICS if labels <= set(metric.labels)}
    for query in to_metrics["queries"]:
        asked = list(selectors(query["query"].replace("{$$__tags}", "{}")))
        assert asked and {one.metric for one in asked} <= having
        assert query["query"].count("{$$__tags}") == len(asked)


def test_dashboards_come_from_a_folder() -> None:
    """One provider reads the mounted folder, and manual edits, which the next start would undo, are not allowed."""
    [path] = (PROVISIONING / "dashboards").glob("*.yaml")
    [provider] = yaml.safe_load(path.read_text())["providers"]
    assert re.fullmatch(r"/var/lib/grafana/\w+", provider["options"]["path"])
    assert provider["type"] == "file" and provider["allowUiUpdates"] is False
