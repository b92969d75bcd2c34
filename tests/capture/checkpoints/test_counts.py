"""The metrics of checkpoints of ordinary jobs, as Prometheus reads them: a save is counted, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from otel_torchdist.tape.layout import ActivityKind
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.metrics.prometheus import TorchDistCollector
from tests.support.launch.jobs import Job, Jobs
from tests.support.native.both_kernels import NATIVE_LATER

pytestmark = NATIVE_LATER
RANKS = 2
STEPS, SAVES = 12, 3
OF_TRAINING = {
    *(ActivityKind.OPTIMIZER_STEP, ActivityKind.DATA_WAIT, ActivityKind.BACKWARD),
    *(ActivityKind.RPC_CLIENT, ActivityKind.RPC_SERVER, ActivityKind.RPC_JOIN, ActivityKind.RPC_SHUTDOWN),
}


def _checkpoint_samples(paths: Iterable[Path]) -> dict[tuple[str, ...], float]:
    """The samples that are of checkpoints, by name and the values of their labels without the run."""
    metrics = NodeMetrics()
    for path in paths:
        tape = TapeReader(path)
        metrics.track(tape).consume(tape.poll(), tape.status(), 0)
    registry = CollectorRegistry()
    registry.register(TorchDistCollector(metrics.snapshot))
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    assert any(one.name == "torchdist_operations" and one.samples for one in families)
    return {
        (sample.name, *(value for label, value in sorted(sample.labels.items()) if label != "run")): sample.value
        for family in families
        if "checkpoint" in family.name
        for sample in family.samples
    }


def _kinds(job: Job) -> list[set[ActivityKind]]:
    return [{activity.kind for activity, _ in tape.activities} for tape in job.tapes]


def test_a_job_that_never_saves(jobs: Jobs) -> None:
    """Waits for data, backward passes, optimizers and remote calls are in no series of checkpoints."""
    job = jobs.run("trains", RANKS, "never")
    assert _kinds(job) == [OF_TRAINING] * RANKS
    assert _checkpoint_samples(tape.path for tape in job.tapes) == {}


def test_a_job_that_saves(jobs: Jobs) -> None:
    """Each rank's saves and loads are counted, by what it has called."""
    job = jobs.run("trains", RANKS, "saves")
    assert all(kinds > OF_TRAINING for kinds in _kinds(job))
    samples = _checkpoint_samples(tape.path for tape in job.tapes)
    counted = {labels[1:]: value for labels, value in samples.items() if labels[0] == "torchdist_checkpoints_total"}
    assert counted == {
        ("save", "0"): SAVES, ("save", "1"): SAVES, ("torch.save", "0"): SAVES, ("torch.load", "0"): 1,
    }  # fmt: skip
    assert {labels[1] for labels in samples if len(labels) > 1} == {"save", "torch.save", "torch.load"}
