"""Recorded runs for the tests of the Python API."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from otel_torchdist.runs import ListedRun, RecordedRun, find_runs, open_run
from tests.support.launch.quiet import QUIET
from tests.support.launch.torchrun import Torchrun
from tests.support.launch.warm_python import WarmPython
from tests.support.tapes.directories import memory_directory

WORKERS: Final = Path(__file__).parent / "workers"
TWO_RANKS: Final = ("--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
STEPS: Final = 60
COMPUTE_MS: Final = (15, 45)
"""Milliseconds that a step computes, before and after the change."""


@dataclass(frozen=True)
class RecordedJobs:
    """Two runs of the same program, before and after a change.

    Attributes:
        tapes: The base directory of their tapes.
        archive: The archive of both.
        runs: The runs, the older first.
    """

    tapes: Path
    archive: Path
    runs: tuple[ListedRun, ...]

    @property
    def before(self) -> RecordedRun:
        """The run before the change, opened."""
        return open_run(self.runs[0])

    @property
    def after(self) -> RecordedRun:
        """The run after the change, opened."""
        return open_run(self.runs[1])


@pytest.fixture(scope="package")
def jobs(warm_python: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedJobs]:
    """Both runs, recorded under torchrun."""
    folder = tmp_path_factory.mktemp("jobs")
    archive = folder / "archive"
    with memory_directory() as tapes, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_PYTHON_TORCHDIST_TAPE_DIR", str(tapes))
        environ = {
            **QUIET,
            "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(tapes),
            "OTEL_PYTHON_TORCHDIST_ARCHIVE": str(archive),
        }
        for compute_ms in COMPUTE_MS:
            arguments = [*TWO_RANKS, WORKERS / "stepping.py", str(STEPS), str(compute_ms)]
            done = Torchrun(warm_python, folder / f"{compute_ms}", arguments, environ).end()
            assert done.code == 0, done.err
        yield RecordedJobs(tapes, archive, find_runs()[::-1])
