"""The adapter for Slurm against a real slurmctld and slurmd: nodes are drained, and jobs start again without them."""

from __future__ import annotations

import importlib
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.agent.actions.machine_advice import NodeAction
from otel_torchdist.node.job.description import JobDescription
from tests.deploy.actions.verdict import ADAPTERS, REASON, adapt, verdict
from tests.support.slurm.cluster import USERS, SlurmCluster, slurm_cluster
from tests.support.waiting import until

pytestmark = pytest.mark.thorough
NODE = HOST = "n1"
OTHER, ELSEWHERE = "n3", "elsewhere.example"
"""A node that does not answer, and its host name."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    """A cluster with one more node."""
    other = f"NodeName={OTHER} NodeHostname={ELSEWHERE} NodeAddr=127.0.0.2 CPUs=8 State=DOWN"
    with slurm_cluster(more=[other]) as running:
        yield running


@pytest.fixture(autouse=True)
def resumed(slurm: SlurmCluster) -> Iterator[None]:
    """Give the node work again after each test."""
    yield
    slurm.run("scancel", "--full", "--signal=KILL", f"--user={USERS[0]}", user="root")
    slurm.run("scancel", f"--user={USERS[0]}", user="root")
    slurm.run("scontrol", "update", f"NodeName={NODE}", "State=RESUME", user="root", check=False)
    until(lambda: slurm.fields("node", NODE).get("State") == "IDLE", 60.0, lambda: slurm.shown("node", NODE))


def submitted(slurm: SlurmCluster, script: str, *options: str, user: str = USERS[0]) -> str:
    """Submit a job; returns its id."""
    return slurm.run("sbatch", "--parsable", *options, user=user, text=f"#!/bin/bash\n{script}\n").stdout.strip()


def act(slurm: SlurmCluster, document: str, *arguments: str) -> tuple[int, str]:
    """Run the adapter as root."""
    state = ("--state", str(slurm.folder / "taken"))
    return adapt("slurm.py", document, *state, *arguments, environ=slurm.environ())


def test_advice_only(slurm: SlurmCluster) -> None:
    """Without the switch, it says what it would do, and Slurm's node and job stay as they are."""
    document = verdict(HOST, job=JobDescription(slurm_job_id="4711"))
    said = f"would drain {NODE} and requeue job 4711 without {NODE} (--act does it): {REASON}"
    assert act(slurm, document, "--requeue") == (0, said)
    assert act(slurm, document) == (0, f"would drain {NODE} (--act does it): {REASON}")
    assert slurm.fields("node", NODE)["State"] == "IDLE"


def test_drained(slurm: SlurmCluster) -> None:
    """The node is drained with the reason, once; operators see it where they look."""
    shutil.rmtree(slurm.folder / "taken", ignore_errors=True)
    assert act(slurm, verdict(HOST), "--act") == (0, f"drained {NODE}: {REASON}")
    assert slurm.fields("node", NODE)["State"] == "IDLE+DRAIN"
    assert f"Reason=otel_torchdist run abcdef01: {REASON} [root@" in slurm.shown("node", NODE)
    assert act(slurm, verdict(HOST), "--act") == (0, f"{NODE} is drained already: {REASON}")
    assert len(list((slurm.folder / "taken").iterdir())) == 1


def test_a_reason_is_no_option(slurm: SlurmCluster) -> None:
    """Whatever a host or a reason contains reaches Slurm as one argument."""
    shutil.rmtree(slurm.folder / "taken", ignore_errors=True)
    evil = "x' State=DOWN\n; touch /tmp/evil"
    assert act(slurm, verdict(HOST, reason=evil), "--act")[0] == 0
    assert "Reason=otel_torchdist run abcdef01: x' State=DOWN ; touch /tmp/evil [root@" in slurm.shown("node", NODE)
    assert slurm.fields("node", NODE)["State"] != "DOWN"
    code, said = act(slurm, verdict("--all; reboot"), "--act")
    assert (code, said) == (1, "refused: Slurm has 0 nodes with the host name --all; reboot")


def test_names_of_nodes(slurm: SlurmCluster) -> None:
    """A node is found by its host name, also if Slurm names it otherwise."""
    assert act(slurm, verdict(ELSEWHERE)) == (0, f"would drain {OTHER} (--act does it): {REASON}")
    assert act(slurm, verdict(OTHER)) == (0, f"would drain {OTHER} (--act does it): {REASON}")
    assert act(slurm, verdict("nowhere")) == (1, "refused: Slurm has 0 nodes with the host name nowhere")


def test_two_a_day(slurm: SlurmCluster) -> None:
    """After as many nodes as are allowed on one day, none is drained."""
    shutil.rmtree(slurm.folder / "taken", ignore_errors=True)
    assert act(slurm, verdict(ELSEWHERE), "--act", "--a-day", "1")[0] == 0
    code, said = act(slurm, verdict(HOST), "--act", "--a-day", "1")
    assert code == 1 and said.startswith("refused: 1 nodes have been taken today")
    assert slurm.fields("node", NODE)["State"] == "IDLE"


def test_an_ordinary_user(slurm: SlurmCluster) -> None:
    """A user without rights cannot drain, hears why, and takes no slot."""
    program = slurm.folder / "actions"
    shutil.copytree(ADAPTERS, program, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    command = ("/usr/bin/python3", "-B", str(program / "slurm.py"), "--act", "--state", str(slurm.work / "mine"))
    done = slurm.run(*command, text=verdict(HOST), check=False)
    refusal = "was refused: slurm_update error: Invalid user id"
    assert done.returncode == 1 and done.stdout.rstrip("\n").endswith(refusal)
    assert list((slurm.work / "mine").iterdir()) == []
    assert slurm.fields("node", NODE)["State"] == "IDLE"


def test_pending_job(slurm: SlurmCluster) -> None:
    """A job that waits for its next start keeps the nodes that it excluded before, and gets one more."""
    job = submitted(slurm, "true", "--hold", f"--exclude={OTHER}")
    document = verdict(HOST, action=NodeAction.EXCLUDE, job=JobDescription(slurm_job_id=job))
    assert act(slurm, document, "--act", "--requeue") == (0, f"changed job {job} without {NODE}: {REASON}")
    assert slurm.fields("job", job)["ExcNodeList"] == f"{OTHER},{NODE}"
    assert slurm.fields("node", NODE)["State"] == "IDLE"  # excluded for this job, not drained


def test_job_of_another_node(slurm: SlurmCluster) -> None:
    """A verdict with the id of a job that runs elsewhere does not end that job, nor does one beyond the limit."""
    shutil.rmtree(slurm.folder / "taken", ignore_errors=True)
    job = submitted(slurm, "sleep 300", "--nodelist=n2")
    until(lambda: slurm.fields("job", job)["JobState"] == "RUNNING", 60.0, slurm.logs)
    document = verdict(HOST, action=NodeAction.EXCLUDE, job=JobDescription(slurm_job_id=job))
    assert act(slurm, document, "--act", "--requeue") == (1, f"refused: job {job} does not run on {NODE}")
    document = verdict("n2", job=JobDescription(slurm_job_id=job))
    code, said = act(slurm, document, "--act", "--requeue", "--a-day", "0")
    assert code == 1 and said.startswith("refused: 0 nodes have been taken today")
    assert slurm.fields("job", job)["JobState"] == "RUNNING"
    assert slurm.fields("node", "n2")["State"] in ("MIXED", "ALLOCATED")


def test_task_of_an_array(slurm: SlurmCluster) -> None:
    """One task of a job array starts again without the node; the others, and the array itself, go on."""
    shutil.rmtree(slurm.folder / "taken", ignore_errors=True)
    script = 'if [ -n "$SLURM_RESTART_COUNT" ]; then exit; fi; sleep 300'
    array = submitted(slurm, script, "--array=1-2", "--requeue", f"--nodelist={NODE}")
    tasks = [f"{array}_{number}" for number in (1, 2)]
    for task in tasks:
        until(lambda task=task: slurm.fields("job", task)["JobState"] == "RUNNING", 60.0, slurm.logs)
    # The last task to start has the id of the array.
    leader = next(task for task in tasks if slurm.fields("job", task)["JobId"] == array)
    [other] = {*tasks} - {leader}
    document = verdict(HOST, action=NodeAction.EXCLUDE, job=JobDescription(slurm_job_id=array))
    assert act(slurm, document, "--act", "--requeue") == (0, f"requeued job {leader} without {NODE}: {REASON}")
    assert slurm.fields("job", leader)["ExcNodeList"] == NODE
    assert slurm.fields("job", other)["JobState"] == "RUNNING"
    slurm.run("scancel", array, user="root")


def started(slurm: SlurmCluster, user: str, action: NodeAction, *options: str) -> tuple[str, Path]:
    """Start a job that runs the adapter; returns its id, and the file with what the adapter says."""
    program = slurm.folder / "actions"
    shutil.copytree(ADAPTERS, program, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    adapter = ["/usr/bin/python3", "-B", str(program / "slurm.py"), "--act", "--requeue", *options]
    script = f"""\
if [ -n "$SLURM_RESTART_COUNT" ]; then exit; fi
{shlex.join(adapter)} --state $PWD/state-$SLURM_JOB_ID < verdict-$SLURM_JOB_ID > said-$SLURM_JOB_ID 2>&1 &
sleep 300"""
    job = submitted(slurm, script, "--requeue", "--hold", f"--nodelist={NODE}", user=user)
    (slurm.work / f"verdict-{job}").write_text(verdict(HOST, action=action, job=JobDescription(slurm_job_id=job)))
    slurm.run("scontrol", "release", job, user="root")
    said = slurm.work / f"said-{job}"
    until(lambda: said.exists() and said.read_text(), 60.0, slurm.logs)
    return job, said


def test_from_within_the_job() -> None:
    """A job that requeues itself survives its own end: it waits for its next start, without the node, and is not held.

    An ordinary user's job, on a node that the user may not drain, so `--no-drain`. Slurm tracks processes by parent.
    """
    with slurm_cluster(tracks="linuxproc") as slurm:
        job, said = started(slurm, USERS[0], NodeAction.EXCLUDE, "--no-drain")
        until(lambda: slurm.fields("job", job).get("ExcNodeList") == NODE, 60.0, slurm.logs)
        until(lambda: slurm.fields("job", job)["JobState"] == "PENDING" and slurm.fields("job", job)["Priority"] != "0")
        until(lambda: said.read_text().endswith("\n"))
        assert said.read_text() == f"requeued job {job} without {NODE}: {REASON}\n"
        assert slurm.fields("job", job)["Restarts"] == "1"


@pytest.fixture
def tracked(slurm: SlurmCluster) -> SlurmCluster:
    """The cluster, if Slurm tracks processes by control groups."""
    if slurm.tracks != "cgroup":
        pytest.skip("needs control groups that can be written")
    return slurm


def test_excluded_from_within_a_control_group(tracked: SlurmCluster) -> None:
    """Slurm would end the adapter with the job, which would stay held for ever: the job is left to go on."""
    job, said = started(tracked, USERS[0], NodeAction.EXCLUDE, "--no-drain")
    assert said.read_text().startswith(f"job {job} was not requeued: this process is in its control group, and would ")
    assert tracked.fields("job", job)["JobState"] == "RUNNING"


def test_drained_from_within_a_control_group(tracked: SlurmCluster) -> None:
    """A drained node needs no exclusion: the job waits for its next start, and is not held."""
    job, said = started(tracked, "root", NodeAction.DRAIN)
    try:
        until(lambda: tracked.fields("job", job).get("Restarts") == "1", 60.0, tracked.logs)
        assert "DRAIN" in tracked.fields("node", NODE)["State"]
        until(lambda: tracked.fields("job", job)["JobState"] == "PENDING")
        assert tracked.fields("job", job)["Priority"] != "0"
        assert said.read_text() == f"drained {NODE}; requeued job {job}: {REASON}\n"
    finally:
        tracked.run("scancel", job, user="root")


@pytest.mark.parametrize(
    ("cgroups", "is_inside"),
    [
        ("4:freezer:/slurm_n1/uid_5/job_47/step_batch\n1:name=systemd:/\n", True),
        ("0::/system.slice/slurmstepd.scope/job_47/step_0/user/task_0\n", True),
        ("0::/system.slice/slurmstepd.scope/job_470/step_0/user/task_0\n", False),
        ("0::/user.slice/user-5.slice\n", False),
    ],
)
def test_control_groups_of_jobs(monkeypatch: pytest.MonkeyPatch, cgroups: str, is_inside: bool) -> None:
    """Both versions of control groups name the job."""
    monkeypatch.syspath_prepend(ADAPTERS)
    assert importlib.import_module("slurm").is_in_job("47", cgroups) is is_inside


def test_without_slurm(tmp_path: Path) -> None:
    """A machine without `scontrol` gets one clear line."""
    code, said = adapt("slurm.py", verdict(HOST), "--scontrol", "/none/scontrol", "--state", str(tmp_path))
    assert (code, said) == (1, "/none/scontrol: [Errno 2] No such file or directory: '/none/scontrol'")
