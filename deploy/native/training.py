"""A training as a user would start it: torchrun, our variables, nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deploy.native.servers import DEPLOY

SCRIPT: Final = DEPLOY.parent / "otel_torchdist" / "cli" / "demo" / "train.py"
SERVICE: Final = "torchdist-demo"
JOB_ENDS_S: Final = 45.0
"""torchrun itself gives its ranks 30 s, and only then kills them."""


def torchrun(ranks: int, script: Path, *arguments: object) -> list[str]:
    """The command line for a script on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*launcher, str(script), *map(str, arguments)]


def training_command(ranks: int, steps: int, block_s: float) -> list[str]:
    """The command line for the demo's training."""
    return torchrun(ranks, SCRIPT, "--steps", steps, "--block-seconds", block_s)


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A job, in a session of its own as under a scheduler; ended with the block at the latest.

    Args:
        command: Its command line.
        environment: Its whole environment.
        log: File for its output.
    """
    with log.open("wb") as output:
        job = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield job
    finally:
        job.terminate()
        try:
            job.wait(JOB_ENDS_S)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()


def training_environment(otlp: str, tapes: Path, threshold_s: float) -> dict[str, str]:
    """Variables that switch us on, added to the current environment.

    Args:
        otlp: Where spans go.
        tapes: Where tapes are.
        threshold_s: Age at which an operation stalls.
    """
    return os.environ | {
        "OTEL_PYTHON_TORCHDIST_ENABLED": "true",
        "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(tapes),
        "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": str(round(threshold_s * 1000)),
        "OTEL_SERVICE_NAME": SERVICE,
        "OTEL_EXPORTER_OTLP_ENDPOINT": otlp,
        "OTEL_EXPORTER_PROMETHEUS_PORT": "0",  # any free one: Prometheus finds it by its file
        "OMP_NUM_THREADS": "1",
    }
