"""`OTEL_PYTHON_TORCHDIST_ON_MACHINE` in real jobs under torchrun: what a bad machine sets off, and what does not."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.node.job.description import write_description
from otel_torchdist.node.job.description_file import read_description
from otel_torchdist.tape.identity import decode_identity
from tests.agent.training import WORKERS, Training
from tests.deploy.actions.verdict import ADAPTERS
from tests.node.machine.conftest import FAKE_NVML
from tests.node.machine.fake_nvml.pynvml import UUIDS
from tests.support.schemas import ACTION, valid
from tests.support.slurm.cluster import slurm_cluster
from tests.support.waiting import until

pytestmark = pytest.mark.thorough


def settings(folder: Path) -> dict[str, str]:
    """The settings of a job on a machine with GPUs, whose actions append what they get to a file."""
    for file in (FAKE_NVML / "pynvml.py", WORKERS / "steps.py"):
        shutil.copy(file, folder)
    return {
        "FAKE_NVML_XID": str(folder / "xid"),
        "SLURM_JOB_ID": "4711",
        "OTEL_PYTHON_TORCHDIST_ON_MACHINE": f"command:sh -c 'cat > {folder}/$TORCHDIST_STALL_TRACE_ID.verdict'",
        "OTEL_PYTHON_TORCHDIST_MACHINE_INCIDENTS": str(folder / "incidents"),
    }


def received(folder: Path) -> list[dict[str, Any]]:
    """What actions got; each document is whole when its action is logged."""
    texts = [file.read_text() for file in folder.glob("*.verdict")]
    return [valid(json.loads(text), ACTION) for text in texts if text.endswith("}")]


def break_gpu(training: Training, folder: Path) -> None:
    """Have the GPU of rank 0 fall off the bus, which the agent sees."""
    tapes = {decode_identity(tape.read_bytes()[:1024], "").rank: tape for tape in training.base.glob("*/*.tape")}
    described = read_description(tapes[0])
    assert described is not None
    write_description(tapes[0], dataclasses.replace(described, gpu=UUIDS[0]))
    until(lambda: f'hw_id="{UUIDS[0]}",rank="0"' in training.scrape())
    (folder / "xid.new").write_text("79")
    (folder / "xid.new").rename(folder / "xid")
    until(lambda: not (folder / "xid").exists())  # the library has reported it


def kill_rank(training: Training, rank: int) -> None:
    """Kill a rank."""
    variable = f"RANK={rank}".encode()
    [pid] = [pid for pid in training.ranks() if variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]
    os.kill(pid, signal.SIGKILL)


def test_lost_gpu(train: Callable[..., Training], tmp_path: Path) -> None:
    """A rank whose GPU has fallen off the bus is killed: the action gets the verdict, node and job."""
    training = train(folder=tmp_path, environ=settings(tmp_path))
    training.joined_at()
    break_gpu(training, tmp_path)
    kill_rank(training, 0)
    [document] = until(lambda: received(tmp_path), 60.0, lambda: training.log)
    machine, host = document["machine"], socket.gethostname()
    assert (machine["action"], machine["hosts"], machine["incidents"]) == ("drain", [host], 1)
    # The library also counts memory errors.
    assert machine["reason"].startswith(f"dead: {host}: GPU of rank 0: Xid 79 (it has fallen off the bus)")
    assert (document["occasion"], document["verdict"], document["ranks"]) == ("machine", "dead", "0")
    assert document["job"]["slurm_job_id"] == "4711"
    spans = training.receiver.wait_for(lambda spans: any(span.name.startswith("stall:") for span in spans))
    [root, *_] = [span for span in spans if span.name.startswith("stall:")]
    assert root.attributes["torchdist.machine.fault"] == "shown"
    assert list(root.attributes["torchdist.machine.hosts"]) == [socket.gethostname()]


def test_drained_in_slurm(train: Callable[..., Training], tmp_path: Path) -> None:
    """The same job under a real Slurm: the node is drained with the reason, and the job's next start goes elsewhere."""
    name = "n3"
    node = f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.2 CPUs=8 State=DOWN"
    with slurm_cluster(more=[node]) as slurm:
        job = slurm.run("sbatch", "--parsable", "--hold", text="#!/bin/sh\n").stdout.strip()
        adapter = [sys.executable, ADAPTERS / "slurm.py", "--requeue", "--act", "--state", tmp_path / "taken"]
        command = f"command:{shlex.join(map(str, adapter))}"
        own = {"SLURM_JOB_ID": job, "SLURM_CONF": slurm.environ()["SLURM_CONF"]}
        environ = {**settings(tmp_path), **own, "OTEL_PYTHON_TORCHDIST_ON_MACHINE": command}
        training = train(folder=tmp_path, environ=environ)
        training.joined_at()
        break_gpu(training, tmp_path)
        kill_rank(training, 0)
        until(lambda: slurm.fields("node", name)["State"] == "DOWN+DRAIN", 60.0, lambda: training.log + slurm.logs())
        until(lambda: slurm.fields("job", job).get("ExcNodeList") == name, 30.0, lambda: training.log)
        reason = rf"Reason=otel_torchdist run \w{{8}}: dead: {socket.gethostname()}: GPU of rank 0: Xid 79 \(it has"
        assert re.search(reason, slurm.shown("node", name))
        log = next(training.base.glob("*/agent.log"))
        said = rf"on machine: command exited with code 0: drained {name}; changed job {job} without {name}: dead: "
        until(lambda: said in log.read_text(), 30.0, log.read_text)


def test_second_incident(train: Callable[..., Training], tmp_path: Path) -> None:
    """A rank killed without a visible cause only counts; the same on this machine in the next job leaves it out."""
    environ = settings(tmp_path)
    incidents = tmp_path / "incidents" / socket.gethostname()
    for nth in (1, 2):
        training = train(folder=tmp_path, environ=environ)
        training.joined_at()
        until(lambda training=training: 'rank="1"' in training.scrape())  # no agent acts on ranks that it has not seen
        kill_rank(training, 0)
        until(lambda nth=nth: len(list(incidents.glob("*.json"))) == nth, 60.0, lambda training=training: training.log)
        training.torchrun.wait(60)
    [document] = until(lambda: received(tmp_path))
    assert (document["machine"]["action"], document["machine"]["incidents"]) == ("exclude", 2)


def test_late_rank_on_a_bad_machine(train: Callable[..., Training], tmp_path: Path) -> None:
    """A rank that is late in its program drains nothing, even if its GPU has reported an error."""
    training = train(folder=tmp_path, environ=settings(tmp_path))
    training.joined_at()
    break_gpu(training, tmp_path)
    training.stall()
    until(lambda: "its GPU reported Xid 79" in training.log.replace("Its", "its"), 60.0, training.log)
    spans = training.receiver.wait_for(lambda spans: any(span.name == "stall: broadcast (absent)" for span in spans))
    [root, *_] = [span for span in spans if span.name == "stall: broadcast (absent)"]
    assert "torchdist.machine.fault" not in root.attributes
    assert received(tmp_path) == [] and not (tmp_path / "incidents").exists()
