"""The metrics as Prometheus scrapes them."""

import dataclasses
import logging
import urllib.request
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL
from otel_torchdist.model.kinds import How, Kernel
from otel_torchdist.model.text import readable
from otel_torchdist.show.serving.metrics_page import MetricsServer
from otel_torchdist.telemetry.metrics.definitions import NUMBER_METRICS
from otel_torchdist.telemetry.metrics.definitions.operations import HISTOGRAM_METRICS
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.metrics.prometheus import TorchDistCollector
from otel_torchdist.telemetry.metrics.snapshots import NodeSnapshot, VerdictStatus
from tests.support.tapes.fake_tape import RUN, RUN_ID, SECOND, WORLD, FakeTape

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
ODD = 'quote " backslash \\ newline \n tab \t snow \u2603 surrogate \ud800 brace } comma , equals ='
PAIR = dataclasses.replace(WORLD, ranks=(0, 1), description=ODD)


class Scrape(NamedTuple):
    """An answer of the server."""

    content_type: str
    text: str


def scrape(port: int, accept: str) -> Scrape:
    """Ask a server for its metrics."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as response:
        return Scrape(response.headers["Content-Type"], response.read().decode())


def samples(families: Iterable[Metric]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by name and labels; fails on a series that is there twice."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in families:
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


@pytest.fixture
def node(tmp_path: Path) -> NodeMetrics:
    """Two ranks of which one waits for the other, and a stall."""
    metrics = NodeMetrics(spans_dropped=lambda: 2, clock=lambda: 100 * SECOND)
    for number in (0, 1):
        rank = FakeTape(tmp_path, rank=number, kernel=Kernel.NATIVE, torch="2.15.0+cu130")
        rank.run(lasts=SECOND // 500, message_bytes=1000)
        rank.run("all_gather", PAIR, lasts=2 * SECOND, how=How.WAIT)
        rank.writer.step_ended(0, 0, 1)
        rank.writer.step_ended(1, SECOND // 4, 2)
        rank.writer.add_overhead(1_500_000, 100)
        if number == 0:
            rank.begin(at=88 * SECOND, sequence=2)
        metrics.track(rank.reader).consume(rank.reader.poll(), rank.reader.status(), 0)
    metrics.set_stall(VerdictStatus(RUN_ID, WORLD.key, "all_reduce", "absent", (1,), 7, "2/4"))
    metrics.set_end(VerdictStatus(RUN_ID, WORLD.key, "all_reduce", "dead", (1,), 7))
    return metrics


@pytest.fixture
def port(node: NodeMetrics) -> Iterator[int]:
    """A port on which the node's metrics are served."""
    registry = CollectorRegistry()
    registry.register(TorchDistCollector(node.snapshot))
    server = MetricsServer("localhost", 0, registry)
    assert server.start()
    assert server.port is not None
    yield server.port
    server.stop()


def test_text_and_openmetrics_are_equivalent(port: int) -> None:
    """The Accept header decides on the format; both parse strictly, and agree in every sample."""
    text = scrape(port, "text/plain")
    openmetrics = scrape(port, OPENMETRICS)
    assert text.content_type.startswith("text/plain")
    assert openmetrics.content_type.startswith("application/openmetrics-text")
    assert openmetrics.text.endswith("# EOF\n")
    assert samples(parse_text(text.text)) == samples(parse_openmetrics(openmetrics.text))


def test_values(port: int) -> None:
    """What is scraped is what the ranks did, under the names and labels that alerts are written for."""
    lines = scrape(port, "text/plain").text.splitlines()
    run, world, pair = f'run="{RUN}"', f'group="{WORLD.key}"', f'group="{PAIR.key}"'
    reduce_0 = f'{{{world},operation="all_reduce",rank="0",{run}}}'
    reduce, gather = (f'message_size="4KiB",operation="{name}",{run}' for name in ("all_reduce", "all_gather"))
    gather_1 = f'{{{pair},operation="all_gather",rank="1",{run}}}'
    for line in (
        f'torchdist_up{{rank="0",{run}}} 1.0',
        f"torchdist_operations_in_flight{reduce_0} 1.0",
        f"torchdist_operation_oldest_age_seconds{reduce_0} 12.0",
        f"torchdist_operations_total{reduce_0} 2.0",
        f"torchdist_message_bytes_total{reduce_0} 1016.0",
        f"torchdist_timed_operations_total{gather_1} 1.0",
        f"torchdist_timed_operation_seconds_total{gather_1} 2.0",
        f'torchdist_last_started_sequence{{{world},rank="0",{run}}} 2.0',
        f'torchdist_last_completed_sequence{{{world},rank="0",{run}}} 1.0',
        f'torchdist_operation_duration_seconds_bucket{{{world},le="0.001",{reduce}}} 0.0',
        f'torchdist_operation_duration_seconds_bucket{{{world},le="0.0025",{reduce}}} 2.0',
        f'torchdist_operation_duration_seconds_bucket{{{pair},le="+Inf",{gather}}} 2.0',
        f"torchdist_operation_duration_seconds_sum{{{pair},{gather}}} 4.0",
        f"torchdist_operation_duration_seconds_count{{{pair},{gather}}} 2.0",
        f"torchdist_step_duration_seconds_count{{{run}}} 2.0",
        f'torchdist_timed_steps_total{{rank="1",{run}}} 1.0',
        f'torchdist_timed_step_seconds_total{{rank="1",{run}}} 0.25',
        f"torchdist_stalled{{{world},{run}}} 1.0",
        f"torchdist_stalled{{{pair},{run}}} 0.0",
        f'torchdist_stall_info{{coverage="2/4",{world},operation="all_reduce",ranks="1",{run},'
        f'trace_id="{7:032x}",verdict="absent"}} 1.0',
        f'torchdist_attempt_ended_info{{{world},operation="all_reduce",ranks="1",{run},'
        f'trace_id="{7:032x}",verdict="dead"}} 1.0',
        f'torchdist_group_info{{description="default_pg",{world},{run},size="4"}} 1.0',
        f'torchdist_groups_folded_total{{rank="0",{run}}} 0.0',
        f'torchdist_capture_info{{kernel="native",rank="0",{run},torch="2.15.0+cu130"}} 1.0',
        f'torchdist_overhead_seconds_total{{rank="0",{run}}} 0.0015',
        f'torchdist_records_lost_total{{rank="0",{run}}} 0.0',
        "torchdist_spans_dropped_total 2.0",
    ):
        assert line in lines


def test_odd_names_do_not_spoil_a_scrape(port: int) -> None:
    """A group may have any name: unprintable characters are escaped, the rest is unchanged."""
    families = {family.name: family for family in parse_openmetrics(scrape(port, OPENMETRICS).text)}
    descriptions = {sample.labels["description"] for sample in families["torchdist_group"].samples}
    assert descriptions == {"default_pg", readable(ODD)}


def test_names_obey_the_rules_of_prometheus(port: int) -> None:
    """As `promtool check metrics`: base units, `_total` on counters only, help for each, no reserved labels."""
    lines = scrape(port, "text/plain").text.splitlines()
    types = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}
    helps = {line.split()[2]: line.split(maxsplit=3)[3] for line in lines if line.startswith("# HELP")}
    assert set(types) == {metric.name for metric in (*NUMBER_METRICS, *HISTOGRAM_METRICS)}
    assert set(helps) == set(types)
    for name, kind in types.items():
        is_ours = name.startswith("torchdist_")
        assert is_ours or name.startswith("rpc_")  # else it is OpenTelemetry's
        assert name == name.lower()
        assert helps[name].endswith(".")
        assert name.endswith("_total") == (kind == "counter")
        assert not (is_ours and name.endswith(("_count", "_sum", "_bucket")))
        assert not any(word in name for word in ("millisecond", "_ms", "kilobyte", "gauge", "histogram", "counter"))
        if "age" in name.split("_") or "duration" in name or "overhead" in name:
            assert name.removesuffix("_total").endswith("_seconds")
    for metric in (*NUMBER_METRICS, *HISTOGRAM_METRICS):
        assert not set(metric.labels) & {"le", "quantile", "job", "instance"}


def test_nothing_is_collected_on_registration() -> None:
    """`describe` is empty: registering, and asking other collectors for names, cost no snapshot."""

    def fail() -> NodeSnapshot:
        raise AssertionError("a snapshot was taken")

    CollectorRegistry(auto_describe=True).register(TorchDistCollector(fail))


def test_empty_node_is_a_valid_scrape() -> None:
    """Before the first rank there are only help texts and the node's own counter."""
    registry = CollectorRegistry()
    registry.register(TorchDistCollector(NodeMetrics().snapshot))
    assert samples(registry.collect()) == {("torchdist_spans_dropped_total", ()): 0}


def test_error_of_ours_leaves_others_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """In a registry that belongs to the user, our failure is a line in the log and not a failed scrape."""
    monkeypatch.setenv(OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL, "false")
    registry = CollectorRegistry()
    Gauge("users_own", "Not ours.", registry=registry).set(5)
    # Not a function of this file, which would be a frame of the program in the traceback.
    registry.register(TorchDistCollector(NodeMetrics(spans_dropped=partial(int, "broken")).snapshot))
    with caplog.at_level(logging.ERROR):
        assert samples(registry.collect()) == {("users_own", ()): 5}
    assert "the collection of metrics" in caplog.text
