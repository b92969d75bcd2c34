"""The scripts of `examples/slurm`, submitted as they are, on nodes without GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.receivers.otlp_receiver import HTTP, OtlpReceiver
from tests.support.slurm.cluster import SlurmCluster
from tests.support.slurm.jobs import SlurmJob, submit_script
from tests.support.waiting import until

pytestmark = [pytest.mark.thorough, pytest.mark.rare]
WITHOUT_GPUS = ("--gpus-per-node=0", "--ntasks-per-node=1")
SCRIPTS = ("train.sbatch", "torchrun.sbatch")


def run_example(cluster: SlurmCluster, script: str, what: str, endpoint: str = "") -> SlurmJob:
    """Submit a script with the training of these tests."""
    environ = {"NPROC_PER_NODE": "1"}
    exported = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": HTTP}
    environ |= exported if endpoint else {"OTEL_TRACES_EXPORTER": "none"}
    name = Path(script).stem
    return submit_script(cluster, name, Path(script), *WITHOUT_GPUS, "--", "train.py", what, environ=environ)


def agent_logs(job: SlurmJob) -> list[str]:
    """The logs of a job's agents."""
    return [(job.cluster.work / f"agent-{job.number}-{name}.log").read_text() for name in job.cluster.names]


@pytest.mark.parametrize("script", SCRIPTS)
def test_training_that_ends(cluster: SlurmCluster, script: str) -> None:
    """Both agents export the last call of each rank before their step ends, and leave nothing behind."""
    with OtlpReceiver(HTTP, host=cluster.nodes.outside) as receiver:
        job = run_example(cluster, script, "end", receiver.endpoint)
        job.wait_for_state("COMPLETED", timeout_s=200)
        spans = [span for span in receiver.spans() if span.attributes.get("torchdist.sequence") == 100]
    for log in agent_logs(job):
        assert "all ranks have ended; everything they recorded was exported\n" in log
    assert {span.attributes["torchdist.rank"] for span in spans} == {0, 1}
    assert {span.resource["service.name"] for span in spans} == {Path(script).stem}
    assert job.notices == []
    for name in cluster.names:
        assert cluster.processes(name, "otel-torchdist") == []


@pytest.mark.parametrize("script", SCRIPTS)
def test_training_that_fails(cluster: SlurmCluster, script: str) -> None:
    """The agents see that a rank has failed, with what, and the job fails as it would without them."""
    job = run_example(cluster, script, "fail")
    job.wait_for_state("FAILED", timeout_s=200)
    assert "ValueError: bad batch" in job.log
    assert any("rank 1 has failed with ValueError\n" in log for log in agent_logs(job))


def test_cancelled_training(cluster: SlurmCluster) -> None:
    """After scancel the agents see their ranks end, and exit before Slurm would kill them."""
    job = run_example(cluster, "train.sbatch", "hang")
    job.wait_for_notice()
    job.cancel()
    until(lambda: all("everything they recorded was exported\n" in log for log in agent_logs(job)), 150.0)
    assert job.state == "CANCELLED"
    assert len(job.notices) == 1


def test_two_jobs_on_the_same_nodes(cluster: SlurmCluster) -> None:
    """The agents of each job read the ranks of their own job, although both jobs belong to one user."""
    jobs = [run_example(cluster, "train.sbatch", "end") for _ in range(2)]
    for job in jobs:
        job.wait_for_state("COMPLETED", timeout_s=200)
    logs = [log for job in jobs for log in agent_logs(job)]
    assert all("all ranks have ended; everything they recorded was exported\n" in log for log in logs)
    read = [
        {line.split()[-1] for log in agent_logs(job) for line in log.splitlines() if " reading " in line}
        for job in jobs
    ]
    assert [len(directories) for directories in read] == [1, 1]
    assert read[0] != read[1]
