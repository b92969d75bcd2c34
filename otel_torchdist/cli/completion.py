"""Completes ids of runs in the shell."""

from __future__ import annotations

import logging
import time

from otel_torchdist.config import Config
from otel_torchdist.errors import TapeError
from otel_torchdist.job.runs import Run, whole_index


def complete_run(incomplete: str) -> list[tuple[str, str]]:
    """Return the ids that begin with `incomplete`, newest first, each with a description of its run."""
    # A warning would end up in the middle of the command line.
    logging.getLogger("otel_torchdist").addHandler(logging.NullHandler())
    try:
        index = whole_index(Config.from_environment(), None)
    except TapeError:
        return []
    return [(run.label, _summary(run)) for run in index.runs if run.label.startswith(incomplete.lower())]


def _summary(run: Run) -> str:
    begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.begun_ns / 1e9))
    return f"{run.world_size} ranks, started {begun}"
