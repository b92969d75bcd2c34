"""A job of Slurm that hangs: where its users see why, what they run next, and what is left after `scancel`."""

from __future__ import annotations

import shlex

import pytest

from tests.support.receivers.otlp_receiver import HTTP, OtlpReceiver
from tests.support.slurm.cluster import SlurmCluster
from tests.support.slurm.jobs import PYTHON, submit, with_path
from tests.support.waiting import until

pytestmark = [pytest.mark.thorough, pytest.mark.rare]
SCRAPE = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9464/metrics', timeout=10).read().decode())"
HANG = PYTHON.format(script="train.py hang")


def test_hang_from_verdict_to_scancel(cluster: SlurmCluster) -> None:
    """One line in the job's log names the rank; the command below it works; SIGUSR1 and scancel cause no verdict."""
    with OtlpReceiver(HTTP, host=cluster.nodes.outside) as receiver:
        bundles = cluster.work / "bundles"
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": HTTP,
            "OTEL_PYTHON_TORCHDIST_BUNDLES": str(bundles),
        }
        job = submit(cluster, "pretrain", f"srun {HANG}", "-N2", "--ntasks-per-node=2", environ=settings)
        notice = job.wait_for_notice()
        assert notice.startswith("rank 3 has not entered all_reduce (sequence 21, default_pg) for ")
        assert "it is in load_batch at train.py:22; 3 of 4 ranks wait in main at train.py:" in notice
        assert job.state == "RUNNING"  # what Slurm does: nothing

        assert job.details.startswith(f"srun --jobid={job.number} --overlap --nodelist=n1 -N1 -n1 otel-torchdist diag")
        shown = cluster.run(*shlex.split(job.details), environ=with_path(), check=False).stdout
        assert f"Slurm job {job.number} (pretrain)\n" in shown
        assert "verdict  rank 3 has not entered all_reduce (sequence 21, default_pg) for " in shown
        assert "rank 3 has not entered all_reduce" in job.otel_torchdist("n2", "diagnose")

        assert [len(job.agents(name)) for name in cluster.names] == [1, 1]
        page = cluster.run_on("n2", "python3", "-c", SCRAPE).stdout
        assert f'slurm_job_id="{job.number}",slurm_job_name="pretrain"' in page
        # The agent that judges serves it, which may be on either node.
        both = page + cluster.run_on("n1", "python3", "-c", SCRAPE).stdout
        assert 'verdict="absent"' in both
        assert 'ranks="3"' in both

        spans = receiver.wait_for(lambda spans: any(span.attributes.get("torchdist.stalled") for span in spans))
        resources = [span.resource for span in spans]
        assert {resource["torchdist.slurm.job.id"] for resource in resources} == {job.number}
        assert {resource["torchdist.slurm.job.name"] for resource in resources} == {"pretrain"}
        assert {resource["torchdist.slurm.cluster"] for resource in resources} == {"tests"}
        assert {resource["host.name"] for resource in resources} == {"n1", "n2"}
        assert {resource["torchdist.slurm.node.id"] for resource in resources} == {"0", "1"}

        cluster.run("scancel", "--signal=USR1", job.number)
        asked = [cluster.work / f"checkpoint-{job.number}-{rank}" for rank in range(4)]
        until(lambda: asked[3].exists() or asked[0].exists())

        job.cancel()
        assert job.state == "CANCELLED"
        assert len(job.notices) == 1, job.log
        for name in cluster.names:
            until(lambda name=name: not cluster.processes(name, "train.py") and not job.agents(name))
        assert [path for path in bundles.rglob("*") if path.is_file()], "no bundle of the stall"


def test_time_limit(cluster: SlurmCluster) -> None:
    """At the time limit Slurm ends a healthy job, and no rank is named for that."""
    job = submit(cluster, "short", f"srun {PYTHON.format(script='train.py run')}", "-N2", "--ntasks-per-node=1", "-t1")
    job.wait_for_agents()
    job.wait_for_state("TIMEOUT", timeout_s=200)
    assert "DUE TO TIME LIMIT" in job.log
    assert job.notices == []


def test_epilog_that_cleans(cluster: SlurmCluster) -> None:
    """An epilog that removes what users leave in memory finds our directory, and the next job makes a new one."""
    for _ in range(2):
        job = submit(cluster, "cleaned", f"srun {HANG}", "-N1", "--ntasks-per-node=2", "--partition=cleaned")
        assert job.wait_for_notice().startswith("rank 1 has not entered")
        job.cancel()
        until(lambda: cluster.run_on("n1", "sh", "-c", "ls /dev/shm").stdout == "")
