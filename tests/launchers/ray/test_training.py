"""The example of `examples/ray` on a real cluster, as its users start it: what it shows, and what is left."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.launchers.ray.running import AGENT_LOG, EXAMPLE, RayCluster
from tests.launchers.started import line_of
from tests.support.commands.running import SCRIPT
from tests.support.receivers.otlp_receiver import OtlpReceiver

pytestmark = [pytest.mark.thorough, pytest.mark.rare, pytest.mark.timeout(900)]
UNTOUCHED = Path(__file__).parent / "workers" / "untouched.py"


def test_hang(cluster: RayCluster, memory: Path) -> None:
    """The driver's output has one verdict, with the line of the worker that hangs; spans have the names of the job."""
    with OtlpReceiver() as receiver:
        job = cluster.train("--name", "pretrain", "--hang", "16", tapes=memory, endpoint=receiver.endpoint)
        assert job.code == 0, job.output
        [log] = job.agent_logs()
        spans = receiver.spans()
    [verdict] = job.verdicts
    assert verdict.startswith("rank 1 has not entered all_reduce (DDP bucket 0, sequence ")
    assert f"; it is in load_batch at {line_of(EXAMPLE, 'time.sleep(config')}; 1 of 2 ranks waits in " in verdict
    assert f"train at {line_of(EXAMPLE, 'loss.backward()')}" in verdict
    assert "stall: rank 1" not in job.output, "the same verdict again, from the log of a worker"
    assert "failed" not in log
    [description] = job.descriptions
    names = {"torchdist.ray.train.run.name": "pretrain", "torchdist.ray.train.run.id": description.ray_train_run_id}
    assert re.fullmatch("[0-9a-f]{32}", description.ray_train_run_id)
    for span in spans:
        assert span.resource.items() >= names.items()
        assert re.fullmatch("[0-9a-f]{8}", span.resource["torchdist.ray.job.id"])
    calls = Counter(
        (span.attributes["torchdist.rank"], span.attributes["torchdist.sequence"], span.name)
        for span in spans
        if {"torchdist.rank", "torchdist.sequence"} <= span.attributes.keys()
        and span.name == span.attributes.get("torchdist.operation")  # and no bar of the stall
    )
    assert calls and set(calls.values()) == {1}
    assert {tuple(call) for rank, *call in calls if rank == 0} == {tuple(call) for rank, *call in calls if rank == 1}


def test_trainings_one_after_the_other(cluster: RayCluster, memory: Path) -> None:
    """Each has a directory and an agent of its own, which ends, and reports no failure: Ray kills its workers."""
    job = cluster.train("--runs", "2", tapes=memory)
    assert job.code == 0, job.output
    assert job.output.count("metrics: ") == 2
    assert job.verdicts == []
    assert sorted(description.ray_train_run for description in job.descriptions) == ["example-0", "example-1"]
    assert job.tape_counts == [2, 2]
    for log in job.agent_logs():
        assert "failed" not in log and "dead" not in log


def test_restart(cluster: RayCluster, memory: Path) -> None:
    """The verdict names the exception of the training function; the next attempt goes into the same directory."""
    job = cluster.train("--fail", str(memory / "failed"), tapes=memory)
    assert job.code == 0, job.output
    assert job.tape_counts == [4]
    assert "rank 1 has failed with ValueError\n" in (job.directories[0] / AGENT_LOG).read_text()
    [verdict] = job.verdicts
    assert verdict.startswith("rank 1 ended with ValueError, and all_reduce (DDP bucket 0, sequence ")
    line = line_of(EXAMPLE, 'raise ValueError("bad batch")')
    assert f'it raised ValueError in load_batch at {line}: "bad batch"' in verdict


def test_killed_worker(cluster: RayCluster, memory: Path) -> None:
    """`diagnose` names it, and no verdict names a worker that fails or is ended because of it."""
    job = cluster.train("--kill", tapes=memory)
    assert job.code == 1
    assert "ray.train.WorkerGroupError" in job.output
    [log] = job.agent_logs()
    assert "rank 1 is dead: its process is gone\n" in log
    assert "stall: rank 0" not in log
    environ = {**os.environ, "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(memory)}
    shown = subprocess.run([SCRIPT, "diagnose"], env=environ, capture_output=True, text=True, timeout=60).stdout
    assert "verdict  rank 1 was killed by SIGKILL, and all_reduce (DDP bucket 0, sequence " in shown, shown


def test_without_process_group(cluster: RayCluster, memory: Path) -> None:
    """Tasks and data sets of Ray leave nothing: no tape, no agent, no line."""
    job = cluster.run(UNTOUCHED, tapes=memory)
    assert job.code == 0, job.output
    assert "sum: 6\n" in job.output and "rows: 10\n" in job.output
    assert "torchdist" not in job.output
    assert list(memory.iterdir()) == []
