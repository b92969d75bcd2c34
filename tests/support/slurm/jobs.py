"""Jobs of a Slurm cluster: submitted as users submit them, and read where users read them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.slurm.cluster import USERS, SlurmCluster
from tests.support.waiting import until

BIN: Final = Path(sys.executable).parent
ENDED: Final = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"})
_SCRIPT: Final = """\
#!/bin/bash
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export OTEL_PYTHON_TORCHDIST_ENABLED=true
{command}
"""
PYTHON: Final = "bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID exec python {script}'"
"""How users start a rank as a task: the variables of torch's `env://` from those of Slurm."""


@dataclass(frozen=True)
class SlurmJob:
    """A submitted job.

    Attributes:
        number: Its id.
        name: Its name.
        cluster: Where it runs.
    """

    number: str
    name: str
    cluster: SlurmCluster

    @property
    def log(self) -> str:
        """Its log, where users look first; '' before it begins."""
        path = self.cluster.work / f"slurm-{self.number}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def notices(self) -> list[str]:
        """The verdicts in its log."""
        lines = [line.removeprefix("otel_torchdist: ") for line in self.log.splitlines() if "otel_torchdist: " in line]
        return [line for line in lines if not line.startswith("details: ")]

    @property
    def details(self) -> str:
        """The command that its log proposes after a verdict."""
        start = "otel_torchdist: details: "
        return next(line.removeprefix(start) for line in self.log.splitlines() if line.startswith(start))

    @property
    def state(self) -> str:
        """Its state, such as RUNNING."""
        return self.cluster.fields("job", self.number).get("JobState", "")

    def wait_for_notice(self, timeout_s: float = 120.0) -> str:
        """The first verdict in its log."""
        return until(lambda: self.notices, timeout_s, lambda: self.log + self.cluster.logs())[0]

    def wait_for_state(self, *states: str, timeout_s: float = 120.0) -> str:
        """The state, as soon as it is one of these."""
        return until(lambda: self.state in states and self.state, timeout_s, lambda: f"{self.state}: {self.log}")

    def wait_for_agents(self, count: int = 2, timeout_s: float = 120.0) -> None:
        """Wait until this many nodes have an agent that ranks have started."""
        until(lambda: sum(len(self.agents(name)) for name in self.cluster.names) >= count, timeout_s, lambda: self.log)

    def agents(self, node: str) -> list[str]:
        """The agents that ranks have started on a node."""
        return self.cluster.processes(node, "agent.launch.background")

    def otel_torchdist(self, node: str, *arguments: str, user: str = USERS[0]) -> str:
        """Run a command of ours on a node of the job, beside its steps; returns its output."""
        command = ["srun", f"--jobid={self.number}", "--overlap", f"--nodelist={node}", "-N1", "-n1"]
        done = self.cluster.run(*command, "otel-torchdist", *arguments, user=user, environ=with_path(), check=False)
        return done.stdout + done.stderr

    def cancel(self) -> None:
        """End it as `scancel` does, and wait until its nodes are free."""
        self.cluster.run("scancel", self.number, user="root")
        self.wait_for_state(*ENDED)
        until(lambda: not self.cluster.run("squeue", "--noheader", f"--jobs={self.number}", check=False).stdout.strip())


def with_path(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a shell with this virtual environment active."""
    return {"PATH": f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin", **(more or {})}


def submit(
    cluster: SlurmCluster,
    name: str,
    command: str,
    *options: str,
    user: str = USERS[0],
    environ: Mapping[str, str] | None = None,
) -> SlurmJob:
    """Submit a batch script as a user writes it: the rendezvous, the one variable of ours, and a command.

    Args:
        cluster: Where it runs.
        name: The job's name.
        command: What follows in the script.
        *options: Of sbatch.
        user: Who submits it.
        environ: Additions to the environment of sbatch, which jobs inherit.
    """
    script = cluster.work / f"{name}.sbatch"
    script.write_text(_SCRIPT.format(command=command))
    return submit_script(cluster, name, script, *options, user=user, environ=environ)


def submit_script(
    cluster: SlurmCluster,
    name: str,
    script: Path,
    *words: str,
    user: str = USERS[0],
    environ: Mapping[str, str] | None = None,
) -> SlurmJob:
    """Submit a script; options are before it in `words`, and arguments of the script after `--`."""
    split = words.index("--") if "--" in words else len(words)
    options, arguments = words[:split], words[split + 1 :]
    submitted = cluster.run(
        *("sbatch", "--parsable", f"--job-name={name}", "--time=10", *options, str(script), *arguments),
        user=user,
        environ=with_path({"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", **(environ or {})}),
    )
    return SlurmJob(submitted.stdout.strip(), name, cluster)


def copy_to_work(cluster: SlurmCluster, *files: Path) -> None:
    """Copy files to the directory from which jobs are submitted."""
    for file in files:
        shutil.copy(file, cluster.work)
        (cluster.work / file.name).chmod(0o644)
