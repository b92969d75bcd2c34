"""From the job's ranks to what people see: traces, metrics, alert and message, each from the server that shows it."""

import time
from collections import Counter

import pytest

from deploy.native.jaeger_spans import JaegerSpan
from deploy.native.stack import Stack
from deploy.native.training import SERVICE
from tests.servers.jobs import RANKS, THRESHOLD_S
from tests.servers.story import ABSENT, ODD, Story, markers_in

ALERT_S = 15.0
"""From the verdict to the alert: a scrape, an evaluation of the rules, and the way to Alertmanager."""
QUIET = ("torchdist_finding_info", "torchdist_stall_info")


@pytest.fixture(scope="session")
def traces(stack: Stack, story: Story) -> list[list[JaegerSpan]]:
    """All traces of the run."""
    return stack.traces.find(SERVICE, {"torchdist.run": story.run}, limit=1500)


def anchors(trace: list[JaegerSpan]) -> dict[str, JaegerSpan]:
    """The spans of a step by rank; if it has several segments, those of the first."""
    return {span.name: span for span in reversed(trace) if span.name.startswith("step (")}


def test_ranks_meet_in_one_trace(traces: list[list[JaegerSpan]]) -> None:
    """Nearly every step is one trace with all ranks; each has every operation of the step under its own anchor."""
    steps = [trace for trace in traces if anchors(trace)]
    complete = [trace for trace in steps if len(anchors(trace)) == RANKS]
    assert len(steps) > 50  # of some 150: on a loaded machine a step takes longer
    assert len(complete) >= len(steps) - 3  # the first and the last may lack a rank, which died or started later
    for trace in complete[5:-5]:
        names = Counter((span.tags["torchdist.rank"], span.name) for span in trace if span.parent_id)
        for rank in range(RANKS):
            assert names[rank, "all_reduce"] >= 2
            assert names[rank, "all_gather_into_tensor"] >= 1


def test_nothing_is_odd_about_any_span(traces: list[list[JaegerSpan]]) -> None:
    """No warning from Jaeger, no duplicate span id, and no span whose parent is missing."""
    spans = [span for trace in traces for span in trace]
    assert [(span.name, span.warnings) for span in spans if span.warnings] == []
    assert [id_ for id_, count in Counter(span.span_id for span in spans).items() if count > 1] == []
    known = {span.span_id for span in spans}
    assert [span.name for span in spans if span.parent_id and span.parent_id not in known] == []


def test_markers_are_there_while_it_hangs(story: Story) -> None:
    """Each waiting rank has an open-ended bar with the reason, within seconds of the threshold."""
    markers = {span.tags["torchdist.rank"]: span for span in markers_in(story.marked)}
    assert set(markers) == set(range(RANKS)) - {ABSENT}
    for span in markers.values():
        assert span.tags["torchdist.verdict"] == "absent"
        assert span.tags["otel.status_code"] == "ERROR"
        assert f"rank {ABSENT} has not entered" in span.tags["otel.status_description"]
        assert span.duration_us >= THRESHOLD_S * 1e6
    assert story.marked_at_s is not None
    assert story.stalled_at_s is not None


def test_alert_names_the_rank_and_links_to_the_stall(story: Story, stack: Stack) -> None:
    """The alert comes within seconds of the verdict; it links to a trace in Jaeger that shows the absent rank."""
    assert story.alert is not None
    assert story.alerted_at_s is not None
    assert story.stalled_at_s is not None
    assert story.alerted_at_s - story.stalled_at_s < ALERT_S
    assert dict(story.alert.labels).keys() == {"alertname", "severity", "run", "group"}
    assert story.alert.annotations["ranks"] == str(ABSENT)
    assert story.alert.annotations["verdict"] == "absent"
    address, _, trace_id = story.alert.annotations["trace"].rpartition("/trace/")
    assert address == stack.addresses.jaeger
    spans = stack.traces.trace(trace_id)
    roots = [span for span in spans if not span.parent_id]
    assert roots[0].name.startswith("stall: ")
    assert roots[0].name.endswith(" (absent)")
    absent = [span for span in spans if span.name == f"rank {ABSENT}: absent"]
    assert any("read_shard" in span.tags.get("code.stacktrace", "") for span in absent)


def test_alert_links_to_the_page_on_its_verdict(story: Story) -> None:
    """The agent that has raised the alert serves the page while the job hangs."""
    assert story.alert is not None
    assert story.alert.annotations["runbook_url"].endswith("/docs/verdicts/absent")
    assert "<h1" in story.runbook
    assert "What to do now" in story.runbook


def test_message_when_it_begins_and_when_it_is_over(story: Story) -> None:
    """The webhook is notified of the stall, with rank and link, and then of its end."""
    reported = [
        (alert["status"], alert["annotations"])
        for message in story.messages
        for alert in message["alerts"]
        if alert["labels"]["alertname"] == "TorchdistStalled"
    ]
    # A message may come twice, and the death at the end may stall the others for a moment before they are ended.
    assert list(dict.fromkeys(status for status, _ in reported)) == ["firing", "resolved"]
    assert f"ranks {ABSENT} (4/4 report)" in reported[0][1]["summary"]
    assert "/trace/" in reported[0][1]["trace"]


def test_end_of_the_stall_is_in_jaeger(story: Story, stack: Stack) -> None:
    """The operations that hung are complete now, in the same run, with their real length."""
    ids = {span.span_id for span in markers_in(story.marked)}
    linked = {target for span in story.marked if span.span_id in ids for _, target in span.links}
    found = stack.traces.find(SERVICE, {"torchdist.run": story.run}, operation="all_reduce", min_duration="10s")
    ended = {span.span_id for trace in found for span in trace if span.duration_us > 10e6 and span.name == "all_reduce"}
    assert ended
    assert ended <= linked


OF_OTHERS = (
    "TorchdistComputeShareLow",
    "TorchdistDeviceMemory",
    "TorchdistGradientSyncExposed",
    "TorchdistLinkSaturated",
    "TorchdistMemoryPressure",
    "job_run:torchdist_gradient_sync_share:",
    "job_run_host_name:torchdist_memory_",
    "node_device:",
    "node_gpu:",
    "torchdist-job: Memory",
    "torchdist-parts: Exposed gradient sync",
)
"""What needs DDP, exporters of nodes and devices, or more time than the story takes."""


def test_every_query_has_data(story: Story) -> None:
    """Prometheus understands every expression of every dashboard and rule, and each had data at some time.

    But what is slow must have been so for half a minute; `promtool` and jobs on two nodes test that. If it was, the
    alert for stragglers is silent for the same rank. The job does not look at values, which is off by default, has no
    GPUs, no DDP, which times its gradients, saves no checkpoint, makes no remote calls, and has no exporters of nodes
    and devices beside it; nor is it long enough for goals: here Prometheus only has to understand what is asked about
    them.
    """
    assert story.errors == {}
    missing = {where for expression, where in story.asked.items() if expression not in story.answered}
    of_values = {where for where in missing if where.startswith("torchdist-numeric: ")}
    of_checkpoints = {where for where in missing if "heckpoint" in where}
    of_calls = {where for where in missing if "emote calls" in where}
    of_others = {where for where in missing if where.startswith(OF_OTHERS)}
    silent = {
        f"Torchdist{name}" for name in ("NonFinite", "Diverged", "GpuLost", "SharedGroup", "CallsBlocked", "Idle")
    }
    unanswered = missing - of_values - of_checkpoints - of_calls - of_others - silent
    assert unanswered <= {"TorchdistSlow"} or unanswered == {"TorchdistStraggler"}


def test_pushed_metrics_are_the_scraped_ones(story: Story) -> None:
    """Through the Collector and its Prometheus exporter come the same names with the same labels."""
    scraped = {name: series for (name, job), series in story.routes.items() if job == "torchdist"}
    pushed = {name: series for (name, job), series in story.routes.items() if job == SERVICE}
    assert scraped
    assert set(scraped) == set(pushed)
    for name in scraped:
        assert {frozenset(dict(one)) for one in scraped[name]} == {frozenset(dict(one)) for one in pushed[name]}, name
        if name not in QUIET:
            assert scraped[name] <= pushed[name] or pushed[name] <= scraped[name], name


def test_odd_names_come_through_whole(story: Story, traces: list[list[JaegerSpan]]) -> None:
    """Group names with quotes, backslashes and so on appear in Prometheus and in Jaeger; line breaks are escaped."""
    shown = ODD.replace("\n", "\\n").replace("\t", "\\t")
    assert shown in {sample.labels["description"] for sample in story.groups}
    assert shown in {span.tags.get("torchdist.group.description") for trace in traces for span in trace}


@pytest.mark.parametrize("metric", ["torchdist_operation_duration_seconds", "torchdist_step_duration_seconds"])
def test_exemplars_lead_to_traces(metric: str, story: Story, stack: Stack) -> None:
    """The exemplar that Prometheus keeps with a histogram's bucket is the id of a trace that Jaeger has."""
    now = time.time()
    found = stack.metrics.exemplars(f'{metric}_bucket{{run="{story.run}"}}', now - 600, now)
    assert found
    for trace_id in {labels["trace_id"] for labels in found}:
        assert any(span.name.startswith("step (") for span in stack.traces.trace(trace_id))
