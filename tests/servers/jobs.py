"""Jobs that send to the stack: torchrun and our variables, as users have them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deploy.native.training import running, torchrun, training_environment
from tests.support.forked_ranks import with_forked_ranks

RANKS: Final = 4
THRESHOLD_S: Final = 3.0
WORKERS: Final = Path(__file__).parent / "workers"


@contextmanager
def running_job(
    script: str, *arguments: object, otlp: str, tapes: Path, log: Path, **more: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A job on four ranks, ended with the block at the latest.

    Args:
        script: A file in `workers`.
        arguments: Arguments of the script.
        otlp: Where it sends spans.
        tapes: Where its tapes are.
        log: File for its output.
        more: Other variables.
    """
    environment = with_forked_ranks(training_environment(otlp, tapes, THRESHOLD_S) | more)
    with running(torchrun(RANKS, WORKERS / script, *arguments), environment, log) as job:
        yield job
