"""The machine under a real job, and who the job is: in metrics, in the resource, and beside a verdict."""

from __future__ import annotations

import dataclasses
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from otel_torchdist.node.job.description import JobDescription, RankDescription, write_description
from otel_torchdist.node.job.description_file import read_description
from otel_torchdist.tape.identity import decode_identity
from tests.agent.training import RANKS, WORKERS, Training
from tests.node.machine.conftest import FAKE_NVML
from tests.node.machine.fake_nvml.pynvml import UUIDS
from tests.support.commands.running import Running
from tests.support.ranks.job_ranks import Ranks
from tests.support.receivers.otlp_receiver import OtlpReceiver
from tests.support.waiting import until


def tape_of(base: Path, rank: int) -> Path:
    """The tape of a rank."""
    tapes = {decode_identity(tape.read_bytes()[:1024], "").rank: tape for tape in base.glob("*/*.tape")}
    return tapes[rank]


def test_job_and_its_machine(train: Callable[..., Training], tmp_path: Path) -> None:
    """One job under torchrun, on a machine with two GPUs, one of which breaks.

    The node and the GPU of ranks are served; the resource says who the job is, a user's own attributes win, and no
    secret leaves; and the verdict on the stall that follows says what the GPU has reported.
    """
    for file in (FAKE_NVML / "pynvml.py", WORKERS / "steps.py"):  # an agent imports what its ranks could import
        shutil.copy(file, tmp_path)
    training = train(
        folder=tmp_path,
        environ={
            "FAKE_NVML_XID": str(tmp_path / "xid"),
            "SLURM_JOB_ID": "4711",
            "SLURM_JOB_NAME": "llm",
            "POD_NAME": "train-0",
            "WANDB_API_KEY": "geheim",
            "OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=mine",
            "OTEL_PYTHON_TORCHDIST_DESCRIBE_LAUNCH": "true",
        },
    )
    training.joined_at()
    on_node = [f'host_name="{socket.gethostname()}",hw_id="",rank="{rank}"' for rank in range(RANKS)]
    page = until(lambda: page if (page := training.scrape()) and all(labels in page for labels in on_node) else "")
    assert 'slurm_job_id="4711",slurm_job_name="llm"' in page

    described = read_description(tape_of(training.base, 0))
    assert described is not None and described.gpu == ""  # it has no device, so the test says which one it would have
    write_description(tape_of(training.base, 0), dataclasses.replace(described, gpu=UUIDS[0]))
    until(lambda: f'hw_id="{UUIDS[0]}",rank="0"' in training.scrape())
    (tmp_path / "xid.new").write_text("79")
    (tmp_path / "xid.new").rename(tmp_path / "xid")
    training.stall()
    clause = r"[Ii]ts GPU reported Xid 79 \(it has fallen off the bus\) [\d.]+ s (before|after) the wait began"
    begin = r"otel_torchdist: rank 0 has not entered broadcast \(sequence \d+, default_pg\) for [\d.]+ s; "
    sentence = rf"{begin}[^\n]*[;.] {clause}"
    until(lambda: re.search(sentence, training.log), 60.0, training.log)
    spans = training.receiver.wait_for(lambda spans: any(span.name.startswith("stall:") for span in spans))
    [root, *_] = [span for span in spans if span.name == "stall: broadcast (absent)"]
    assert root.attributes["torchdist.machine.evidence"] == "xid"

    resource = spans[0].resource
    assert (resource["torchdist.slurm.job.id"], resource["torchdist.slurm.job.name"]) == ("4711", "llm")
    assert resource["k8s.pod.name"] == "mine"
    assert "steps.py" in " ".join(resource["process.command_args"])
    assert "geheim" not in str(resource)
    steps = [span for span in spans if span.name.startswith("step (")]
    assert not any(name.startswith(("k8s.", "torchdist.slurm.", "process.command")) for name in steps[0].attributes)


def test_service_for_several_jobs(
    begin: Callable[..., Ranks], start: Callable[..., Running], receiver: OtlpReceiver, base: Path
) -> None:
    """A service of the node passes on who the job is by the environment of its ranks, and not by its own."""
    ranks = begin(2)
    job = JobDescription(slurm_job_id="4711", kubernetes_pod="train-0", elastic_restart_count="2")
    for rank in range(2):
        write_description(tape_of(base, rank), RankDescription(job))
    service = start("agent", "--watch", SLURM_JOB_ID="1", POD_NAME="agents")
    service.wait_for("found ranks 0-1")
    ranks.meet(1)
    for rank in range(2):
        ranks.send(rank, "step 1")
    [anchor, *_] = receiver.wait_for(lambda spans: any(span.name.startswith("step (") for span in spans))
    said = {"torchdist.slurm.job.id": "4711", "k8s.pod.name": "train-0", "torchdist.torchelastic.restart_count": 2}
    assert said.items() <= anchor.attributes.items()
    assert not said.keys() & anchor.resource.keys()
