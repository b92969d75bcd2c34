"""The whole library under AddressSanitizer and UndefinedBehaviorSanitizer, in real processes with torch.

ThreadSanitizer watches what needs no torch; see `test_stress`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_CAPTURE
from tests.support.launch.jobs import Jobs
from tests.support.launch.warm_python import WarmPython
from tests.support.native.sanitizers import address_runtime, watched_cache

TESTS = Path(__file__).parents[1]
LIMIT_S = 360.0
pytestmark = [pytest.mark.thorough, pytest.mark.rare, pytest.mark.timeout(400)]


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
    jobs = Jobs(python, TESTS / "capture", environ=native)
    yield jobs
    jobs.clean_up()
    python.close()


@pytest.mark.parametrize(
    ("worker", "ranks", "arguments"),
    [
        pytest.param("core/c10d/workers/every_operation", 3, (), id="every operation on gloo"),
        pytest.param("core/kernels/workers/random_calls", 1, ("recorded", "3", "60"), id="random calls in threads"),
        pytest.param("core/kernels/workers/used_again", 1, (), id="addresses that are used again"),
        pytest.param("core/kernels/workers/sessions", 1, (), id="sessions, and DDP"),
    ],
)
def test_nothing_is_reported(jobs: Jobs, worker: str, ranks: int, arguments: tuple[str, ...]) -> None:
    """The sanitizers object to nothing in programs that the library records."""
    job = jobs.run(worker, ranks, *arguments, timeout_s=LIMIT_S)
    errors = [rank.err for rank in job.ranks]
    assert not [error for error in errors if "Sanitizer" in error or "runtime error" in error], "\n".join(errors)
    ends = Counter(operation.how for tape in job.tapes for operation in tape.operations)
    assert ends["CALLBACK"] > 20, "only the library knows such ends"
