"""The demo's training as a user would start it: torchrun, our variables, nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from deploy.native.servers import DEPLOY

SCRIPT: Final = DEPLOY.parent / "otel_torchdist" / "demo" / "train.py"
SERVICE: Final = "torchdist-demo"


def training_command(ranks: int, steps: int, block_s: float, fault: str = "late") -> list[str]:
    """The command line of torchrun on this machine."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)),
        *(str(SCRIPT), "--steps", str(steps), "--block-seconds", str(block_s), "--fault", fault),
    ]


def training_environment(otlp: str, tapes: Path, threshold_s: float) -> dict[str, str]:
    """The environment that switches us on, beside what is there.

    Args:
        otlp: Where spans go.
        tapes: Where tapes lie.
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
