"""Jobs that send to the stack: torchrun and our variables, as users have them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deploy.native.training import training_environment

RANKS: Final = 4
THRESHOLD_S: Final = 3.0
WORKERS: Final = Path(__file__).parent / "workers"


@contextmanager
def running_job(
    script: str, *arguments: object, otlp: str, tapes: Path, log: Path, **more: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A job on four ranks, ended at the latest with the block.

    Args:
        script: In `workers`.
        arguments: Of the script.
        otlp: Where it sends spans.
        tapes: Where its tapes lie.
        log: What it writes.
        more: Other variables.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    environment: Mapping[str, str] = training_environment(otlp, tapes, THRESHOLD_S) | more
    with log.open("wb") as output:
        job = subprocess.Popen(
            [*command, str(WORKERS / script), *map(str, arguments)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            yield job
        finally:
            job.terminate()
            try:
                job.wait(45)  # torchrun itself gives its ranks 30 s
            except subprocess.TimeoutExpired:
                job.kill()
                job.wait()
