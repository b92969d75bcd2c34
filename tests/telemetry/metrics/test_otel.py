"""The metrics through OpenTelemetry's API."""

import dataclasses
import os
import warnings
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    HistogramDataPoint,
    InMemoryMetricReader,
    Metric,
    NumberDataPoint,
    Sum,
)
from opentelemetry.semconv._incubating.metrics import rpc_metrics
from prometheus_client import CollectorRegistry

from otel_torchdist.model.kinds import Kernel, RunIdState
from otel_torchdist.node.job.description import JobDescription, RankDescription, write_description
from otel_torchdist.node.machine.reader import MachineReading
from otel_torchdist.tape.figures import FigureWord
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.metrics.definitions import NUMBER_METRICS
from otel_torchdist.telemetry.metrics.definitions.operations import HISTOGRAM_METRICS
from otel_torchdist.telemetry.metrics.metric import MetricKind
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.metrics.otel import OTelMetrics
from otel_torchdist.telemetry.metrics.prometheus import TorchDistCollector
from otel_torchdist.telemetry.metrics.rank_metrics import RankMetrics
from otel_torchdist.telemetry.metrics.snapshots import NodeSnapshot, VerdictStatus
from tests.support.tapes.fake_tape import RUN_ID, SECOND, WORLD, FakeTape

GPU = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
LABELS = {attribute: label for label, attribute in semconv.OTEL_METRIC_ATTRIBUTES.items()}
PROMETHEUS_NAMES = {metric.otel_name: metric.name for metric in (*NUMBER_METRICS, *HISTOGRAM_METRICS)}


class CountingNode(NodeMetrics):
    """A node that counts its snapshots."""

    taken = 0

    def snapshot(self) -> NodeSnapshot:
        """Count it."""
        self.taken += 1
        return super().snapshot()


class Pushed:
    """A node's metrics behind a provider whose reader is collected by hand."""

    def __init__(self, directory: Path) -> None:
        self.machine: MachineReading | None = None
        self.node = CountingNode(lambda: 4, lambda: 100 * SECOND, lambda: 3, lambda: self.machine)
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider(metric_readers=[self.reader], shutdown_on_exit=False)
        self.metrics = OTelMetrics(self.node, self.provider, fresh_s=60.0)
        self.directory = directory

    def add(self, rank: int, state: RunIdState = RunIdState.AGREED) -> tuple[FakeTape, RankMetrics]:
        """Add a rank that has run, waited and stepped."""
        simulated = FakeTape(self.directory, rank, state=state, kernel=Kernel.NATIVE, torch="2.15.0")
        counted = self.node.track(simulated.reader)
        other = dataclasses.replace(WORLD, ranks=(0, 1), description="tensor")
        for sequence in range(1, 9):
            simulated.run(sequence=sequence, lasts=SECOND >> sequence)
            simulated.run("broadcast", other, sequence=sequence, lasts=400 * SECOND)
            simulated.writer.step_ended(sequence, sequence * SECOND, sequence)
        simulated.begin(at=60 * SECOND, sequence=9)
        simulated.writer.add_overhead(1_000_000, 5)
        for word in FigureWord:
            simulated.writer.add_to(word, 1_000_000_000)
        simulated.writer.add_flops(1e15)
        counted.consume(simulated.reader.poll(), simulated.reader.status(), 0)
        return simulated, counted

    def collect(self) -> dict[str, Metric]:
        """The provider's metrics by their Prometheus name."""
        data = self.reader.get_metrics_data()
        return {
            PROMETHEUS_NAMES[metric.name]: metric
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def otel_samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Every value of the provider, under the name and labels that Prometheus would give it."""
        found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for name, metric in self.collect().items():
            for point in metric.data.data_points:
                labels = {LABELS[key]: str(value) for key, value in (point.attributes or {}).items()}
                if isinstance(point, NumberDataPoint):
                    found[name, frozenset(labels.items())] = point.value
                    continue
                assert isinstance(point, HistogramDataPoint)
                bounds = [*map(str, point.explicit_bounds), "+Inf"]
                for bound, count in zip(bounds, accumulate(point.bucket_counts), strict=True):
                    found[f"{name}_bucket", frozenset({**labels, "le": bound}.items())] = count
                found[f"{name}_sum", frozenset(labels.items())] = point.sum
                found[f"{name}_count", frozenset(labels.items())] = point.count
        return found

    def prometheus_samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Every sample of a scrape."""
        registry = CollectorRegistry()
        registry.register(TorchDistCollector(self.node.snapshot))
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in registry.collect()
            for sample in family.samples
        }


@pytest.fixture
def pushed(tmp_path: Path) -> Iterator[Pushed]:
    """A node behind a provider."""
    pushed = Pushed(tmp_path)
    yield pushed
    pushed.provider.shutdown()


def test_both_ways_out_agree(pushed: Pushed) -> None:
    """Every series that a scrape shows is pushed with the same value, and nothing else is."""
    ranks = [pushed.add(rank)[0] for rank in range(2)]
    pushed.machine = MachineReading("node-1", {rank.reader.identity.nonce: GPU for rank in ranks})
    write_description(ranks[1].reader.path, RankDescription(JobDescription(slurm_job_id="4711")))
    pushed.node.set_stall(VerdictStatus(RUN_ID, WORLD.key, "all_reduce", "absent", (2, 3), 9, "2/4"))
    expected = pushed.prometheus_samples()
    assert len(expected) > 100
    assert pushed.otel_samples() == pytest.approx(expected)


def test_late_run_id_loses_no_duration(pushed: Pushed) -> None:
    """Durations from before the run was settled are recorded once it is, so both exports still agree."""
    simulated, counted = pushed.add(0, state=RunIdState.PROVISIONAL)
    assert list(pushed.collect()) == ["torchdist_spans_dropped_total", "torchdist_archive_operations_dropped_total"]
    simulated.writer.set_run_id(RUN_ID, RunIdState.AGREED)
    counted.consume(simulated.reader.poll(), simulated.reader.status(), 0)
    expected = pushed.prometheus_samples()
    assert len(expected) > 50
    assert pushed.otel_samples() == pytest.approx(expected)


def test_one_snapshot_for_a_collection(pushed: Pushed) -> None:
    """All metrics of a collection show one moment, and cost one snapshot; the next collection shows a newer one."""
    simulated, counted = pushed.add(0)
    before = pushed.otel_samples()
    assert pushed.node.taken == 1
    simulated.run(sequence=10)
    counted.consume(simulated.reader.poll(), simulated.reader.status(), 0)
    assert pushed.otel_samples() != before
    assert pushed.node.taken == 2


WHERE_SOMETHING_WAS_FOUND = (
    "torchdist_stall_info",
    "torchdist_attempt_ended_info",
    "torchdist_finding_info",
    "torchdist_arrivals_compared_total",
    "torchdist_last_arrivals_total",
    "torchdist_lateness_seconds_total",
    "torchdist_waited_seconds_total",
    "torchdist_critical_path_seconds",
    "torchdist_critical_path_rank_seconds",
    "torchdist_critical_path_gain_seconds",
    "torchdist_sampled_operations_total",
    "torchdist_non_finite_operations_total",
    "torchdist_unseen_operations_total",
    "torchdist_amp_skipped_steps_total",
    "torchdist_amp_scale",
    "torchdist_parameter_checksums_total",
    "torchdist_replicas_left_out",
    "torchdist_input_norm",
    "torchdist_input_absmax",
    "torchdist_input_headroom",
    "torchdist_checkpoints_total",
    "torchdist_checkpoint_seconds_total",
    "torchdist_checkpoint_size_bytes_total",
    "torchdist_checkpoint_files_total",
    "torchdist_checkpoint_failures_total",
    "torchdist_checkpoint_age_seconds",
    "torchdist_checkpoint_interval_seconds",
)


def test_conventions_are_kept() -> None:
    """What has no name of ours has one of OpenTelemetry's, and each label is represented by an attribute.

    Conventions before `rpc.client.call.duration` called it `rpc.client.duration`, in other units: there is nothing to
    compare with.
    """
    theirs = {name for name in vars(rpc_metrics).values() if isinstance(name, str)}
    names = {metric.otel_name for metric in (*NUMBER_METRICS, *HISTOGRAM_METRICS)}
    if hasattr(rpc_metrics, "RPC_CLIENT_CALL_DURATION"):
        assert {name for name in names if not name.startswith("torchdist.")} <= theirs
    labels = {label for metric in (*NUMBER_METRICS, *HISTOGRAM_METRICS) for label in metric.labels}
    assert labels == semconv.OTEL_METRIC_ATTRIBUTES.keys()


def test_kinds_and_units(pushed: Pushed) -> None:
    """Counters are monotonic sums, in-flight values are sums that may fall, and units are those of UCUM."""
    rank, _ = pushed.add(0)
    pushed.machine = MachineReading("node-1", {rank.reader.identity.nonce: GPU})
    write_description(rank.reader.path, RankDescription(JobDescription(slurm_job_id="4711")))
    metrics = pushed.collect()
    for metric in NUMBER_METRICS:
        if metric.name not in metrics:
            assert metric.name in WHERE_SOMETHING_WAS_FOUND
            continue
        data = metrics[metric.name].data
        assert isinstance(data, Sum) == (metric.kind in (MetricKind.COUNTER, MetricKind.UP_DOWN))
        if isinstance(data, Sum):
            assert data.is_monotonic == (metric.kind is MetricKind.COUNTER)
        assert metrics[metric.name].unit == metric.unit.value
        assert metrics[metric.name].description == metric.help
    assert metrics["torchdist_operation_duration_seconds"].unit == "s"


def test_ranks_are_numbers(pushed: Pushed) -> None:
    """Attributes have the names and types that spans use, so that one query finds both."""
    pushed.add(3)
    (point,) = pushed.collect()["torchdist_up"].data.data_points
    assert point.attributes == {semconv.RUN: "1234abcd", semconv.RANK: 3}


def test_forgotten_rank_is_not_pushed(pushed: Pushed) -> None:
    """Observed series of a rank end when it is forgotten."""
    first, _ = pushed.add(0)
    pushed.add(1)
    assert len(pushed.collect()["torchdist_up"].data.data_points) == 2
    pushed.node.forget(first.reader.identity.nonce)
    (point,) = pushed.collect()["torchdist_up"].data.data_points
    assert point.attributes is not None
    assert point.attributes[semconv.RANK] == 1


def test_stop_and_start_again(pushed: Pushed, caplog: pytest.LogCaptureFixture) -> None:
    """After `stop` nothing more is pushed; new instruments on the same provider count everything once."""
    pushed.metrics.stop()
    pushed.metrics.stop()
    pushed.add(0)
    assert pushed.collect() == {}
    second = OTelMetrics(pushed.node, pushed.provider)
    simulated = FakeTape(pushed.directory, 1)
    simulated.run()
    counted = pushed.node.track(simulated.reader)
    counted.consume(simulated.reader.poll(), simulated.reader.status(), 0)
    metrics = pushed.collect()
    assert len(metrics["torchdist_up"].data.data_points) == 2
    (histogram,) = metrics["torchdist_operation_duration_seconds"].data.data_points
    assert isinstance(histogram, HistogramDataPoint)
    assert histogram.count == 1
    assert caplog.records == []
    second.stop()


def test_forked_child_observes_nothing(pushed: Pushed) -> None:
    """A child that collects from its copy of the provider does not report its parent's ranks."""
    pushed.add(0)
    with warnings.catch_warnings():
        # Python 3.12 and later warn of a fork with threads, which is what DataLoader does.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(int("torchdist_up" in pushed.collect()))
    assert os.waitpid(child, 0)[1] == 0
    assert "torchdist_up" in pushed.collect()
