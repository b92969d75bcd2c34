"""A job's description as attributes: under which names, and who wins."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from otel_torchdist.node.job.description import JobDescription, RankDescription, write_description
from otel_torchdist.telemetry.export.environment import attributes_beyond_resource, environment_resource
from otel_torchdist.telemetry.export.outputs import outputs_from_environment, outputs_of_providers
from tests.support.tapes.fake_tape import FakeTape

JOB = JobDescription(
    slurm_job_id="4711",
    slurm_restart_count="0",
    kubernetes_pod="train-0",
    elastic_restart_count="2",
    wandb_run_id="b2",
    git_commit="a" * 40,
    command=("python", "train.py"),
)
OF_THE_JOB = {
    "torchdist.slurm.job.id": "4711",
    "k8s.pod.name": "train-0",
    "torchdist.wandb.run.id": "b2",
    "vcs.ref.head.revision": "a" * 40,
}


@pytest.fixture
def tape(tmp_path: Path) -> FakeTape:
    """The tape of a rank that has described itself."""
    tape = FakeTape(tmp_path)
    write_description(tape.reader.path, RankDescription(JOB))
    return tape


def test_resource_of_a_job() -> None:
    """The resource has what holds for all attempts, by the names of the conventions where there are some."""
    found = environment_resource(JOB).attributes
    assert OF_THE_JOB.items() <= found.items()
    assert found["process.command_args"] == ("python", "train.py")
    assert not [name for name in found if "restart" in name]


def test_users_attributes_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user has set stays as it is."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=mine,torchdist.slurm.job.id=1")
    found = environment_resource(JOB).attributes
    assert (found["k8s.pod.name"], found["torchdist.slurm.job.id"]) == ("mine", "1")
    assert found["torchdist.wandb.run.id"] == "b2"


def test_nothing_of_an_agent_for_many_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own environment says nothing about the jobs that it reads."""
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert not [name for name in environment_resource().attributes if name.startswith(("torchdist.", "k8s."))]


def test_what_spans_of_steps_add(tape: FakeTape, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the resource of the job only the attempt; beside that of an agent in a pod of its own everything."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=mine")
    attempt = {"torchdist.torchelastic.restart_count": 2}
    own = outputs_from_environment(job=JOB)
    assert attributes_beyond_resource(own.resource, own.describes_job, tape.reader) == attempt
    service = outputs_from_environment()
    everything = OF_THE_JOB | attempt | {"process.command_args": ["python", "train.py"]}
    assert attributes_beyond_resource(service.resource, service.describes_job, tape.reader) == everything


def test_resource_of_the_program(tape: FakeTape) -> None:
    """Where a program has providers of its own, their resource is the program's, and steps add what it lacks."""
    provider = TracerProvider(resource=Resource({"k8s.pod.name": "mine", "torchdist.slurm.job.id": "1"}))
    outputs = outputs_of_providers(provider)
    found = attributes_beyond_resource(outputs.resource, outputs.describes_job, tape.reader)
    assert found.keys() & {"k8s.pod.name", "torchdist.slurm.job.id", "torchdist.wandb.run.id"} == {
        "torchdist.wandb.run.id"
    }
    provider.shutdown()


def test_rank_without_a_description(tmp_path: Path) -> None:
    """A tape of an older version has none, and nothing is added."""
    assert attributes_beyond_resource({}, False, FakeTape(tmp_path).reader) == {}
