"""A job's story as the servers report it: polled while it happens, because some of it is gone afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from deploy.native.http_json import ApiError
from deploy.native.jaeger_spans import JaegerSpan
from deploy.native.prometheus_api import Alert, Sample
from deploy.native.stack import Stack
from deploy.native.training import SERVICE
from tests.grafana.queries import DASHBOARDS, EVERYTHING, queries
from tests.servers.jobs import running_job
from tests.servers.rules import rule_expressions
from tests.support.launch.warm_python import WarmPython

ODD: Final = 'pipeline "1" \\ back\nnext\ttab ☃ } , = ; {{x}} $y'
"""A group description with every odd character that torch's text may have."""
HEALTHY_S: Final = 21.0
AWAY_S: Final = 20.0
AFTER_S: Final = 10.0
LINGER_S: Final = 11.0
STRAGGLER: Final = 1
ABSENT: Final = 2
MAX_S: Final = 170.0


@dataclass(slots=True)
class Story:
    """What was seen, with the time since the job began.

    Attributes:
        run: Label of the run in metrics.
        others: Labels of earlier jobs' runs, which Prometheus may still show.
        marked: The spans of the step in which ranks hung, as Jaeger had them meanwhile.
        alert: The alert of the stall, as Alertmanager had it meanwhile.
        runbook: The page that the alert links to, as its agent served it meanwhile.
        stalled_at_s: When Prometheus first showed that the run stalls.
        marked_at_s: When Jaeger first had markers.
        alerted_at_s: When Alertmanager had the alert.
        answered: Expressions of dashboards and rules that returned data at some time.
        asked: All expressions, with where they come from.
        errors: What servers replied to expressions that they did not understand.
        groups: `torchdist_group_info` of the job.
        routes: By name of metric and by `job`, all series that were ever seen, without the labels that scraping adds.
        messages: Messages that the webhook received.
    """

    run: str = ""
    others: set[str] = field(default_factory=set[str])
    marked: list[JaegerSpan] = field(default_factory=list[JaegerSpan])
    alert: Alert | None = None
    runbook: str = ""
    stalled_at_s: float | None = None
    marked_at_s: float | None = None
    alerted_at_s: float | None = None
    answered: set[str] = field(default_factory=set[str])
    asked: dict[str, str] = field(default_factory=dict[str, str])
    errors: dict[str, str] = field(default_factory=dict[str, str])
    groups: list[Sample] = field(default_factory=list[Sample])
    routes: dict[tuple[str, str], set[frozenset[tuple[str, str]]]] = field(
        default_factory=dict[tuple[str, str], set[frozenset[tuple[str, str]]]]
    )
    messages: list[Any] = field(default_factory=list[Any])


def live_through(python: WarmPython, stack: Stack, tapes: Path, folder: Path) -> Story:
    """Run the job, and query the servers until its agent has left and the alert is resolved."""
    story, began = Story(), time.monotonic()
    story.others = {sample.labels["run"] for sample in stack.metrics.query("torchdist_up")}
    environment = {
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_METRIC_EXPORT_INTERVAL": "2000",
        "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": str(round(LINGER_S * 1000)),
    }
    arguments = (ODD, HEALTHY_S, AWAY_S, AFTER_S)
    with running_job(
        python, folder, "story.py", *arguments, otlp=stack.addresses.otlp, tapes=tapes, **environment
    ) as job:
        while not (job.poll() is not None and _is_over(story, stack)):
            assert time.monotonic() - began < MAX_S, job.log
            _look(story, stack, time.monotonic() - began)
            time.sleep(1.0)
    story.messages = _messages(stack)
    return story


def markers_in(trace: list[JaegerSpan]) -> list[JaegerSpan]:
    """The spans of operations in progress."""
    return [span for span in trace if span.name.endswith("(in progress)")]


def _is_over(story: Story, stack: Stack) -> bool:
    """Whether the end of the stall has been reported, and the agent is no longer scraped."""
    reported = [alert["status"] for message in _messages(stack) for alert in _stall_alerts(message)]
    return "resolved" in reported and not stack.metrics.query('up{job="torchdist"}')


def _look(story: Story, stack: Stack, now_s: float) -> None:
    if not story.run:
        runs = {sample.labels["run"] for sample in stack.metrics.query('torchdist_up{job="torchdist"} == 1')}
        if not runs - story.others:
            return
        [story.run] = runs - story.others
        _ask_for(story)
    _look_at_stall(story, stack, now_s)
    if story.stalled_at_s is not None and story.alert is None:
        return  # all other questions take seconds, by which the alert would seem to be late
    _ask_everything(story, stack)
    story.groups = stack.metrics.query(f'torchdist_group_info{{run="{story.run}",job="torchdist"}}') or story.groups
    _compare_routes(story, stack)


def _ask_for(story: Story) -> None:
    values = EVERYTHING | {"run": story.run, "__range": "3m", "__rate_interval": "20s"}
    for dashboard in DASHBOARDS:
        for query in queries(dashboard, values):
            story.asked.setdefault(query.expr, f"{query.dashboard}: {query.panel} {query.ref}")
    for name, expression in rule_expressions():
        story.asked.setdefault(expression, name)


def _look_at_stall(story: Story, stack: Stack, now_s: float) -> None:
    if story.stalled_at_s is None and stack.metrics.query("torchdist_stalled == 1"):
        story.stalled_at_s = now_s
    for trace in stack.traces.find(SERVICE, {"torchdist.stalled": "true"}):
        if len(markers_in(trace)) > len(markers_in(story.marked)):  # they arrive one by one
            story.marked, story.marked_at_s = trace, story.marked_at_s or now_s
    if story.alert is None:
        story.alert = _first(stack.alerts.alerts(), lambda alert: alert.name == "TorchdistStalled" and alert.is_active)
        story.alerted_at_s = now_s if story.alert else None
        if story.alert is not None:
            with urlopen(story.alert.annotations["runbook_url"], timeout=10) as page:
                story.runbook = page.read().decode()


def _ask_everything(story: Story, stack: Stack) -> None:
    for expression in story.asked.keys() - story.answered - story.errors.keys():
        try:
            if stack.metrics.query(expression):
                story.answered.add(expression)
        except ApiError as error:
            story.errors[expression] = str(error)


def _compare_routes(story: Story, stack: Stack) -> None:
    for sample in stack.metrics.query(f'{{__name__=~"torchdist_.*",run="{story.run}"}}'):
        labels = dict(sample.labels)
        name, job = labels.pop("__name__"), labels.pop("job")
        own = frozenset((key, value) for key, value in labels.items() if key not in ("instance", "torchdist_job"))
        story.routes.setdefault((name, job), set()).add(own)


def _messages(stack: Stack) -> list[Any]:
    if not stack.messages.exists():
        return []
    return [json.loads(line) for line in stack.messages.read_text().splitlines()]


def _stall_alerts(message: Any) -> list[Any]:
    return [alert for alert in message["alerts"] if alert["labels"]["alertname"] == "TorchdistStalled"]


def _first(alerts: list[Alert], wanted: Callable[[Alert], bool]) -> Alert | None:
    return next((alert for alert in alerts if wanted(alert)), None)
