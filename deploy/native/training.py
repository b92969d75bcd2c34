"""Runs a training as a user would: with torchrun and our environment variables."""

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
"""Seconds for torchrun to end; it gives its ranks 30 s before it kills them."""


def torchrun(ranks: int, script: Path, *arguments: object) -> list[str]:
    """Return the command line that runs a script with torchrun on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*launcher, str(script), *map(str, arguments)]


def training_command(ranks: int, steps: int, block_s: float) -> list[str]:
    """Return the command line of the demo's training."""
    return torchrun(ranks, SCRIPT, "--steps", steps, "--block-seconds", block_s)


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job in its own session, as a scheduler does; end it when the block ends.

    Args:
        command: Command line.
        environment: The complete environment.
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
    """Return the current environment with the variables that turn the instrumentation on.

    Args:
        otlp: OTLP endpoint for spans.
        tapes: Base directory of the tapes.
        threshold_s: Age from which an operation counts as stalled, in seconds.
    """
    return os.environ | {
        "OTEL_PYTHON_TORCHDIST_ENABLED": "true",
        "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(tapes),
        "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": str(round(threshold_s * 1000)),
        "OTEL_SERVICE_NAME": SERVICE,
        "OTEL_EXPORTER_OTLP_ENDPOINT": otlp,
        "OTEL_EXPORTER_PROMETHEUS_PORT": "0",  # any free port: Prometheus reads it from a file
        "OMP_NUM_THREADS": "1",
    }
