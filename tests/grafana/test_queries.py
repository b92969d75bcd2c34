"""Queries select metrics that exist, aggregate over nodes, and stay small however many ranks there are."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from otel_torchdist.telemetry.metrics.definitions import NUMBER_METRICS
from otel_torchdist.telemetry.metrics.definitions.operations import HISTOGRAM_METRICS
from tests.grafana.queries import DASHBOARDS, EVERYTHING, PanelQuery, queries
from tests.grafana.selectors import Selector, kept_labels, selectors
from tests.support.repository import REPOSITORY

QUERIES = [query for path in DASHBOARDS for query in queries(path, EVERYTHING)]
RECORDING = REPOSITORY / "deploy" / "prometheus" / "rules" / "recording.yaml"
OF_PROMETHEUS = "ALERTS"
OF_NO_RUN = {"torchdist_spans_dropped_total"}


def _name(query: PanelQuery) -> str:
    return f"{query.dashboard}-{query.panel}-{query.ref}".replace(" ", "_")


def _is_recorded(selector: Selector) -> bool:
    return ":" in selector.metric


@pytest.fixture(params=QUERIES, ids=_name)
def query(request: pytest.FixtureRequest) -> PanelQuery:
    """A query of a dashboard."""
    return request.param


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Names that a query may use."""
    counted = {f"{metric.name}{suffix}" for metric in HISTOGRAM_METRICS for suffix in ("_bucket", "_sum", "_count")}
    return {OF_PROMETHEUS, *counted, *(metric.name for metric in NUMBER_METRICS)}


def test_metrics_exist(query: PanelQuery, known: set[str]) -> None:
    """Each metric is one of ours, or the result of a recording rule."""
    asked = list(selectors(query.expr))
    assert asked
    recorded = {one.metric for one in asked if _is_recorded(one)}
    if recorded:
        groups = yaml.safe_load(RECORDING.read_text(encoding="utf-8"))["groups"]
        assert recorded <= {rule.get("record") for group in groups for rule in group["rules"]}
    assert {one.metric for one in asked} - recorded <= known


def test_variables_ask_for_metrics_that_exist(known: set[str]) -> None:
    """The same holds for the queries that fill the variables."""
    for path in DASHBOARDS:
        for variable in json.loads(path.read_text(encoding="utf-8"))["templating"]["list"]:
            names = set(re.findall(r"[\w:]*torchdist_[\w:]+", variable["query"]))
            assert (variable["type"] == "query") == bool(names)
            recorded = {name for name in names if ":" in name}
            assert names - recorded <= known
            assert all(f"record: {name}\n" in RECORDING.read_text(encoding="utf-8") for name in recorded)


def test_it_is_of_the_chosen_run(query: PanelQuery) -> None:
    """No series of another job or run is included."""
    for one in selectors(query.expr):
        wanted = ["job="] if one.metric in OF_NO_RUN else ["job=", "run="]
        wanted = [f"{name}~" if one.metric == OF_PROMETHEUS else name for name in wanted]
        assert all(matcher in one.matchers for matcher in wanted)


def test_nodes_are_added_up(query: PanelQuery) -> None:
    """What several nodes report about a run becomes one series: none of a single node is returned."""
    for one in selectors(query.expr):
        assert one.groupings or _is_recorded(one), one.metric
        assert not any("instance" in labels for labels in one.groupings)


def test_ranks_are_few(query: PanelQuery) -> None:
    """A thousand ranks do not give a thousand lines: of series by rank, only the largest or smallest few return."""
    for one in selectors(query.expr):
        labels = one.groupings[-1] if one.groupings else frozenset(one.metric.split(":")[0].split("_"))
        assert one.is_chosen_from or "rank" not in labels


def test_legends_have_labels(query: PanelQuery) -> None:
    """A label that a legend shows is one that the query keeps."""
    shown = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
    assert query.legend
    assert shown <= kept_labels(query.expr)
    assert not shown & {"job", "instance"}


def test_what_is_no_good_is_seen() -> None:
    """The checks above can fail: they detect a raw metric, one by instance, and an unbounded number of ranks."""
    [raw] = selectors('rate(torchdist_up{job="a"}[1m])')
    assert (raw.groupings, raw.is_chosen_from) == ((), False)
    [by_node] = selectors('topk(3, sum by (instance, rank) (torchdist_up{job="("}))')
    assert (by_node.groupings, by_node.is_chosen_from) == ((frozenset({"instance", "rank"}),), True)
    inner, chosen = selectors("max by (rank) (a{}) and on (rank) topk(3, max by (rank) (b{}))")
    assert inner.is_chosen_from and chosen.is_chosen_from
    [nested] = selectors("avg(sum by (rank) (rate(a{}[1m])))")
    assert nested.groupings == (frozenset({"rank"}), frozenset())
