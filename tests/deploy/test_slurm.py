"""The Slurm example, run for real: two torchruns on this machine, behind our own `srun` and `scontrol`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.native.ports import free_port
from tests.support.commands.running import kill_processes_of
from tests.support.launch.forked_ranks import with_forked_ranks
from tests.support.waiting import until

SLURM = Path(__file__).parents[2] / "deploy" / "slurm"
WORKER = Path(__file__).parent / "workers" / "steps.py"
BIN = Path(sys.executable).parent
NODES = ("0", "1")

SRUN = """\
#!/bin/bash
# Runs the command once for each node, side by side; fails as the last of them that fails.
while [[ $1 == --* ]]; do shift; done
trap : TERM
SLURM_NODEID=0 "$@" & first=$!
SLURM_NODEID=1 "$@" & second=$!
code=0
for task in $first $second; do
    while true; do wait "$task"; ended=$?; kill -0 "$task" 2>/dev/null || break; done
    ((ended)) && code=$ended
done
exit $code
"""
SCONTROL = "#!/bin/bash\necho localhost\necho elsewhere\n"


class SlurmJob:
    """A job that runs `train.sbatch` from its own directory."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        """Submit the job."""
        self.number = f"{os.getpid()}{free_port() % 10_000:04}"  # `train.sbatch` derives its port from it
        self.folder = folder
        self.results = folder / f"torchdist-{self.number}"
        self.spans = folder / "spans.jsonl"
        (folder / "bin").mkdir()
        (folder / "targets").mkdir()
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        for script in ("train.sbatch", "node.sh"):
            shutil.copy(SLURM / script, folder)
        environ = {
            "PATH": f"{folder / 'bin'}:{BIN}:{os.environ['PATH']}",
            "SLURM_JOB_ID": self.number,
            "SLURM_JOB_NAME": "training",
            "SLURM_JOB_NODELIST": "node[0-1]",
            "SLURM_NNODES": "2",
            "SLURM_SUBMIT_DIR": str(folder),
            "TORCHDIST_TARGETS": str(folder / "targets"),
            "NPROC_PER_NODE": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "OTEL_EXPORTER_PROMETHEUS_HOST": "localhost",
            "OTEL_TRACES_EXPORTER": "torchdist_otlp_json",
            "OTEL_PYTHON_TORCHDIST_OTLP_FILE": str(self.spans),
        }
        self.process = subprocess.Popen(
            ["bash", str(folder / "train.sbatch"), str(WORKER), *arguments],
            env=os.environ | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    @property
    def targets(self) -> dict[str, str]:
        """Prometheus targets, by file."""
        found = (self.folder / "targets").glob("slurm-*.json")
        return {path.name: json.loads(path.read_text())[0]["targets"][0] for path in found}

    def end(self) -> tuple[int, str]:
        """Wait for it; returns the exit code and its output."""
        out, _ = self.process.communicate(timeout=120)
        return self.process.returncode, out

    def tapes(self) -> list[Path]:
        """Leftovers of the directories for tapes."""
        return list(Path("/dev/shm").glob(f"torchdist-{self.number}-*"))

    def log(self, node: str) -> str:
        """The log of a node's agent."""
        return (self.results / f"agent-{node}.log").read_text()

    def clean_up(self) -> None:
        """Leave nothing running and nothing in memory."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        # Ranks have their own sessions, and the job's output open.
        kill_processes_of(Path(f"/dev/shm/torchdist-{self.number}-"))
        self.process.communicate(timeout=60)
        for tapes in self.tapes():
            shutil.rmtree(tapes)


def exported_ranks(spans: Path) -> set[int]:
    """The ranks with exported spans."""
    requests = [json.loads(line) for line in spans.read_text().splitlines()]
    scopes = [s for request in requests for r in request["resourceSpans"] for s in r["scopeSpans"]]
    attributes = [a for scope in scopes for span in scope["spans"] for a in span["attributes"]]
    return {int(a["value"]["intValue"]) for a in attributes if a["key"] == "torchdist.rank"}


@pytest.fixture
def submitted(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SlurmJob]:
    """A job with as many steps as the test requests."""
    job = SlurmJob(tmp_path, request.param)
    yield job
    job.clean_up()


@pytest.mark.parametrize("submitted", ["20"], indirect=True)
def test_job_that_succeeds(submitted: SlurmJob) -> None:
    """Both nodes train together, all spans are exported, and there are no leftovers."""
    code, out = submitted.end()
    assert code == 0, out
    assert all("all ranks have ended; everything they recorded was exported" in submitted.log(node) for node in NODES)
    assert exported_ranks(submitted.spans) == {0, 1}
    assert sorted(path.name for path in submitted.results.iterdir()) == ["agent-0.log", "agent-1.log"]
    assert submitted.targets == {}
    assert submitted.tapes() == []


@pytest.mark.thorough
@pytest.mark.parametrize("submitted", ["1000000"], indirect=True)
def test_job_whose_time_is_over(submitted: SlurmJob) -> None:
    """After SIGTERM to all its processes each node reports what its rank was doing, and its agent has seen the end."""
    until(lambda: len(submitted.targets) == len(NODES), 150.0, lambda: str(submitted.process.poll()))
    assert all(target.startswith("localhost:") for target in submitted.targets.values())
    os.killpg(submitted.process.pid, signal.SIGTERM)
    code, out = submitted.end()
    assert code != 0, out
    for node in NODES:
        assert f"rank {node} " in (submitted.results / f"diagnose-{node}.txt").read_text()
        assert "all ranks have ended; everything they recorded was exported" in submitted.log(node)
    assert exported_ranks(submitted.spans) == {0, 1}
    assert submitted.targets == {}
    assert submitted.tapes() == []


@pytest.mark.thorough
def test_restart(tmp_path: Path) -> None:
    """The agent follows ranks that torchrun restarts, and ends with torchrun; another step's tapes are left alone."""
    gate = tmp_path / "gate"
    gate.touch()
    job = str(os.getpid())
    other_step = Path(f"/dev/shm/torchdist-{job}-0-0")
    other_step.mkdir(0o700)
    environ = {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "SLURM_JOB_ID": job,
        "SLURM_STEP_ID": "1",
        "SLURM_NODEID": "0",
        "SLURM_NNODES": "1",
        "NPROC_PER_NODE": "2",
        "RENDEZVOUS": f"localhost:{free_port()}",
        "TORCHDIST_RESULTS": str(tmp_path),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_EXPORTER_PROMETHEUS_PORT": "0",
        "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "1000",
    }
    out = tmp_path / "out.log"
    with out.open("w") as output:
        step = subprocess.Popen(
            ["bash", str(SLURM / "node.sh"), "--max-restarts=1", str(WORKER.with_name("fails_once.py")), str(gate)],
            env=with_forked_ranks(os.environ | environ),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    log = tmp_path / "agent-1-0.log"
    stall = "stall: rank 1 has not entered all_reduce (sequence 2"
    try:
        until(lambda: step.poll() is not None or (log.exists() and stall in log.read_text()), 150.0)
        assert step.poll() is None, out.read_text()
        gate.unlink()
        assert step.wait(60) == 0
        assert "all ranks have ended; everything they recorded was exported" in log.read_text()
        assert list(Path("/dev/shm").glob(f"torchdist-{job}-*")) == [other_step]
    finally:
        gate.unlink(missing_ok=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(step.pid, signal.SIGTERM)  # torchrun ends its ranks, which have their own sessions
        with contextlib.suppress(subprocess.TimeoutExpired):
            step.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(step.pid, signal.SIGKILL)
        for left in Path("/dev/shm").glob(f"torchdist-{job}-*"):
            shutil.rmtree(left)
