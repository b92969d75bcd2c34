"""Jobs that Slurm starts again, splits or loses: each is its own run, with its own agents and its own verdict."""

from __future__ import annotations

import re

import pytest

from tests.support.slurm.cluster import USERS, SlurmCluster
from tests.support.slurm.jobs import PYTHON, SlurmJob, submit
from tests.support.waiting import until

pytestmark = [pytest.mark.thorough, pytest.mark.rare]
HANG = PYTHON.format(script="train.py hang")
RUN = PYTHON.format(script="train.py run")


def run_of(job: SlurmJob) -> str:
    """The id of the run of which the log proposes a diagnosis."""
    found = re.search(r"diagnose ([0-9a-f]{8}) ", job.details)
    assert found is not None
    return found[1]


def test_requeue(cluster: SlurmCluster) -> None:
    """A job that is requeued is another run of the same job, and is diagnosed as that."""
    job = submit(cluster, "again", f"srun {HANG}", "-N2", "--ntasks-per-node=1", "--requeue", "--open-mode=truncate")
    job.wait_for_notice()
    first = run_of(job)
    cluster.run("scontrol", "requeue", job.number, user="root")
    until(lambda: job.state == "PENDING")
    cluster.run("scontrol", "update", f"jobid={job.number}", "StartTime=now", user="root")  # not only after two minutes
    until(lambda: job.notices and run_of(job) != first, 200.0, lambda: f"{job.state}: {job.log}")
    assert job.notices[0].startswith("rank 1 has not entered all_reduce (sequence 21, default_pg) for ")
    assert len(job.notices) == 1
    shown = job.otel_torchdist("n1", "diagnose")
    assert f"run {run_of(job)}, " in shown
    assert f"Slurm job {job.number} (again), restart 1\n" in shown


def test_array_on_one_node(cluster: SlurmCluster) -> None:
    """Two tasks of an array on one node are two jobs: `diagnose` inside each finds its own run."""
    array = submit(
        cluster, "sweep", f"srun {HANG}", "-N1", "--ntasks-per-node=2", "--array=3-4", "--nodelist=n1", "-o", "a-%a.log"
    )
    logs = [cluster.work / f"a-{task}.log" for task in (3, 4)]
    until(lambda: all(log.exists() and "has not entered" in log.read_text() for log in logs), 150.0)
    shown = cluster.run("squeue", "--noheader", f"--jobs={array.number}", "--format=%A %K").stdout
    numbers = {task: number for number, task in (line.split() for line in shown.splitlines())}
    for task in ("3", "4"):
        diagnosed = SlurmJob(numbers[task], "sweep", cluster).otel_torchdist("n1", "diagnose")
        assert f"Slurm job {numbers[task]} (sweep), task {task} of array {array.number}\n" in diagnosed
        assert "verdict  rank 1 has not entered all_reduce" in diagnosed


def test_steps_beside_each_other(cluster: SlurmCluster) -> None:
    """Two steps of a job on the same node are two runs, each with an agent and a verdict of its own."""
    step = f"MASTER_PORT=$((MASTER_PORT + {{0}})) srun --exclusive -N1 -n2 -o step-%s.log {HANG} &"
    job = submit(cluster, "steps", "\n".join([step.format(1), step.format(2), "wait"]), "-N1", "--ntasks=4", "-w", "n1")
    logs = [cluster.work / f"step-{number}.log" for number in (0, 1)]
    until(lambda: all(log.exists() and "otel_torchdist: rank 1 has not" in log.read_text() for log in logs), 150.0)
    assert all(log.read_text().count("otel_torchdist: rank ") == 1 for log in logs)
    assert len(job.agents("n1")) == 2


def test_two_users_on_a_node(cluster: SlurmCluster) -> None:
    """Each of two users on a node is told about their own job, and cannot read the other's."""
    jobs = {
        user: submit(cluster, user, f"srun {HANG}", "-N1", "--ntasks-per-node=2", "--nodelist=n1", user=user)
        for user in USERS
    }
    for user, job in jobs.items():
        assert job.wait_for_notice().startswith("rank 1 has not entered all_reduce")
        shown = job.otel_torchdist("n1", "diagnose", user=user)
        assert f"Slurm job {job.number} ({user})\n" in shown
    other = jobs[USERS[1]].details.rpartition(" ")[2]
    assert other.startswith("/dev/shm/otel-torchdist-")
    assert "Permission denied" in cluster.run_on("n1", "ls", other, user=USERS[0]).stderr
    assert "verdict" not in jobs[USERS[0]].otel_torchdist("n1", "diagnose", "--run-dir", other)


def test_node_that_fails(cluster: SlurmCluster) -> None:
    """When a node loses its power, Slurm ends the job, and no rank of the nodes that are left is blamed."""
    job = submit(cluster, "power", f"srun {RUN}", "-N2", "--ntasks-per-node=1", "--no-requeue")
    job.wait_for_agents()
    cluster.fail_power("n2")
    try:
        job.wait_for_state("NODE_FAIL", "FAILED", timeout_s=150)
        assert not [notice for notice in job.notices if notice.startswith("rank 0 ")], job.log
        until(lambda: not cluster.processes("n1", "train.py") and not job.agents("n1"))
    finally:
        cluster.start_node("n2")
