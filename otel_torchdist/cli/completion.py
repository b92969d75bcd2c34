"""Completes ids of runs, and paths beside them, in the shell."""

from __future__ import annotations

import glob
import itertools
import logging
import os
import time
from typing import Final

from otel_torchdist.config import Config
from otel_torchdist.errors import TapeError
from otel_torchdist.job.runs.runs import Run, whole_index

MAX_PATHS: Final = 256


def complete_target(incomplete: str) -> list[tuple[str, str]]:
    """Return the ids and then the paths that begin with `incomplete`; a shell that asks us completes nothing itself."""
    paths = itertools.islice(glob.iglob(f"{glob.escape(incomplete)}*"), MAX_PATHS) if incomplete else ()
    return [*complete_run(incomplete), *((path + os.sep * os.path.isdir(path), "") for path in sorted(paths))]


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
