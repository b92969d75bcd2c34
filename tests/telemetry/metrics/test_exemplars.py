"""From a histogram on the page to a trace that has been exported."""

import re
from pathlib import Path

from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from prometheus_client.exposition import generate_latest as as_text
from prometheus_client.openmetrics.exposition import generate_latest as as_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.registry import CollectorRegistry
from prometheus_client.samples import Sample

from otel_torchdist.model.ids import trace_id_of_step
from otel_torchdist.telemetry.metrics.durations import DurationHistogram, Exemplar
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.metrics.prometheus import TorchDistCollector
from otel_torchdist.telemetry.spans.sampling import StepSampler
from otel_torchdist.telemetry.spans.steps import RankSpans
from tests.support.receivers.memory_sink import MemorySink
from tests.support.tapes.fake_tape import RUN_ID, SECOND, FakeTape


def page(directory: Path, sampler: Sampler) -> CollectorRegistry:
    """The page of a rank that has taken two steps of three operations each."""
    rank, node = FakeTape(directory), NodeMetrics()
    metrics = node.track(rank.reader)
    spans = RankSpans(rank.reader, MemorySink(), StepSampler(sampler, 1_000, 0, 4), (), metrics.add_exemplars)
    start = rank.reader.identity.monotonic_ns
    for step in range(2):
        begin = start + step * 10 * SECOND
        for number, lasts in enumerate((SECOND // 100, 4 * SECOND, SECOND // 1000)):
            rank.run(at=begin + number * 4 * SECOND, lasts=lasts, sequence=3 * step + number + 1)
        rank.writer.step_ended(step, begin + 9 * SECOND, 3 * step + 3)
        batch, status, now = rank.reader.poll(), rank.reader.status(), begin + 9 * SECOND
        metrics.consume(batch, status, now)
        spans.consume(batch, status, now)
    registry = CollectorRegistry()
    registry.register(TorchDistCollector(node.snapshot))
    return registry


def exemplars(registry: CollectorRegistry, metric: str) -> dict[str, Sample]:
    """Samples of a histogram with an exemplar, by bucket."""
    families = {family.name: family for family in parse_openmetrics(as_openmetrics(registry).decode())}
    return {sample.labels["le"]: sample for sample in families[metric].samples if sample.exemplar}


def test_longest_operation_of_an_exported_step_has_one(tmp_path: Path) -> None:
    """Its bucket links to the newest trace in which such an operation can be seen; shorter ones need none."""
    registry = page(tmp_path, ALWAYS_ON)
    [(bucket, sample)] = exemplars(registry, "torchdist_operation_duration_seconds").items()
    assert bucket == "5.0"
    assert sample.exemplar is not None
    assert sample.exemplar.labels == {"trace_id": f"{trace_id_of_step(RUN_ID, 1):032x}"}
    assert sample.exemplar.value == 4.0


def test_steps_have_one(tmp_path: Path) -> None:
    """The exemplar has the time at which the step ended."""
    registry = page(tmp_path, ALWAYS_ON)
    found = exemplars(registry, "torchdist_step_duration_seconds")
    assert "10.0" in found
    exemplar = found["10.0"].exemplar
    assert exemplar is not None
    assert exemplar.labels == {"trace_id": f"{trace_id_of_step(RUN_ID, 1):032x}"}
    assert exemplar.timestamp is not None


def test_steps_that_are_not_exported_have_none(tmp_path: Path) -> None:
    """A link to a trace that was not exported would be worse than none."""
    registry = page(tmp_path, ALWAYS_OFF)
    assert exemplars(registry, "torchdist_operation_duration_seconds") == {}
    assert exemplars(registry, "torchdist_step_duration_seconds") == {}


def test_old_format_goes_without(tmp_path: Path) -> None:
    """A client that asks for plain text gets the same numbers."""
    text = as_text(page(tmp_path, ALWAYS_ON)).decode()
    assert re.search(r'^torchdist_operation_duration_seconds_bucket\{.*le="5.0".*\} 6.0$', text, re.MULTILINE)
    assert "trace_id" not in text


def test_newest_stays_whatever_is_added_first() -> None:
    """The order in which ranks of a node are added up does not matter."""
    older, newer = (Exemplar(number, 0.3, float(number)) for number in (1, 2))
    for order in ((older, newer), (newer, older)):
        total = DurationHistogram()
        for one in order:
            part = DurationHistogram()
            part.observe(one.seconds)
            part.add_exemplar(one)
            total.add(part.copy())
        assert list(total.exemplars.values()) == [newer]
        assert total.count == 2
