"""Finds the job to watch, and waits for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.agent.jobs import newest_live_job
from otel_torchdist.agent.stop_signals import StopSignals
from otel_torchdist.cli.runs import select, tape_directory, whole_shelf
from otel_torchdist.cli.switched_off import with_reasons
from otel_torchdist.config import Config
from otel_torchdist.tape.directory import job_directory, tapes_in

LOOK_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which job the user asks for.

    Attributes:
        run: The first digits of its run's id; '' for any.
        run_dir: Its job directory; None for any.
        base: Where job directories are.
    """

    run: str
    run_dir: Path | None
    base: Path

    def __str__(self) -> str:
        what = f"run {self.run}" if self.run else "tape" if self.run_dir else "job with a live rank"
        return f"no {what} below {self.run_dir or self.base}"


@dataclass(frozen=True, slots=True)
class Found:
    """A job.

    Attributes:
        directory: Its job directory.
        run_id: Of the run that was asked for; None for whichever began last there.
    """

    directory: Path
    run_id: int | None = None


def wait_for(
    wanted: Wanted, config: Config, timeout_s: float, stop: StopSignals, say: Callable[[str], None]
) -> Found | None:
    """The job, as soon as there is one; None when there is none in time, or when a signal came.

    Raises:
        TapeError: A directory is another user's.
        SeveralRunsError: More than one run is meant.
    """
    deadline = time.monotonic() + timeout_s
    is_first_look = True
    while stop.received is None:
        found = _look_for(wanted, config)
        left_s = deadline - time.monotonic()
        if found is not None or left_s <= 0:
            return found
        if is_first_look:
            say(with_reasons(f"{wanted} yet; waiting for at most {timeout_s:g} s", os.environ, config))
            is_first_look = False
        stop.wait(min(LOOK_S, left_s))
    return None


def _look_for(wanted: Wanted, config: Config) -> Found | None:
    if wanted.run:
        return _look_for_run(wanted, config)
    if wanted.run_dir is None:
        directory = newest_live_job(tape_directory(config))
        return Found(directory) if directory is not None else None
    directory = job_directory(wanted.run_dir.parent, wanted.run_dir.name)
    return Found(directory) if tapes_in(directory) else None


def _look_for_run(wanted: Wanted, config: Config) -> Found | None:
    shelf = whole_shelf(config, wanted.run_dir)
    try:
        run = select(shelf.runs, wanted.run)
        return Found(run.directory, run.run_id) if run is not None else None
    finally:
        shelf.close()
