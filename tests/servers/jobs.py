"""Jobs that send to the stack: torchrun and our variables, as users have them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deploy.native.training import training_environment
from tests.support.launch.torchrun import Torchrun
from tests.support.launch.warm_python import WarmPython

RANKS: Final = 4
THRESHOLD_S: Final = 3.0
WORKERS: Final = Path(__file__).parent / "workers"


@contextmanager
def running_job(
    python: WarmPython, folder: Path, script: str, *arguments: object, otlp: str, tapes: Path, **more: str
) -> Iterator[Torchrun]:
    """A job on four ranks, ended with the block at the latest.

    Args:
        python: From which it is forked.
        folder: For its output.
        script: A file in `workers`.
        arguments: Arguments of the script.
        otlp: Where it sends spans.
        tapes: Where its tapes are.
        more: Other variables.
    """
    command = ["--standalone", f"--nproc-per-node={RANKS}", WORKERS / script, *map(str, arguments)]
    job = Torchrun(python, folder / "output", command, training_environment(otlp, tapes, THRESHOLD_S) | more)
    try:
        yield job
    finally:
        job.close()
