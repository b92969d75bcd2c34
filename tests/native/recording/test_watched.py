"""The whole library under AddressSanitizer and UndefinedBehaviorSanitizer, in real processes with torch.

ThreadSanitizer watches what needs no torch; see `test_stress`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_CAPTURE
from tests.support.launch.jobs import Job, Jobs
from tests.support.launch.warm_python import WarmPython
from tests.support.native.sanitizers import address_runtime, watched_cache
from tests.support.tapes.recorded import RecordedTape

WORKERS = Path(__file__).parent / "workers"
LIMIT_S = 360.0
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    """Runs jobs in processes forked from one: torch takes 13 s of a core to start when all allocations are watched."""
    watched = {
        "PYTHONMALLOC": "malloc",  # each object is watched
        "LD_PRELOAD": address_runtime(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }
    python = WarmPython(environ=watched)
    native = {OTEL_PYTHON_TORCHDIST_CAPTURE: "native", "XDG_CACHE_HOME": str(watched_cache())}
    jobs = Jobs(python, WORKERS, environ=native)
    yield jobs
    jobs.clean_up()
    python.close()


def watched(job: Job) -> list[RecordedTape]:
    """The tapes of a job that ended well, if nothing was reported."""
    errors = [rank.err for rank in job.ranks]
    assert not [error for error in errors if "Sanitizer" in error or "runtime error" in error], "\n".join(errors)
    return job.tapes


def natively_recorded(tapes: list[RecordedTape]) -> int:
    """How many operations have an end that only the library knows."""
    return sum(operation.how == "CALLBACK" for tape in tapes for operation in tape.operations)


def test_repeated(jobs: Jobs) -> None:
    """Two ranks on gloo: collectives, functional ones, messages, DDP, threads, failures."""
    assert natively_recorded(watched(jobs.run("repeated", 2, timeout_s=LIMIT_S))) > 50


def test_random_calls(jobs: Jobs) -> None:
    """Random calls of all operations, in several threads."""
    assert natively_recorded(watched(jobs.run("random_calls", 1, "recorded", "3", "60", timeout_s=LIMIT_S))) > 50
