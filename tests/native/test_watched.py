"""The whole library under AddressSanitizer and UndefinedBehaviorSanitizer, in real processes with torch.

ThreadSanitizer watches what needs no torch; see `test_stress`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_CAPTURE
from tests.support.native.sanitizers import address_runtime, watched_cache
from tests.support.repository import REPOSITORY
from tests.support.tapes.recorded import RecordedTape, read_tapes

WORKERS = Path(__file__).parent / "workers"
LIMIT_S = 360.0
pytestmark = pytest.mark.timeout(400)
"""Torch takes 13 s of a core to start when each of its allocations is watched."""


def watched(worker: str, ranks: int, *arguments: str) -> list[RecordedTape]:
    """Run a worker as every rank of a job; return the tapes if it ended well and nothing was reported."""
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-test-", dir="/dev/shm") as folder:
        tapes = Path(folder) / "tapes"
        tapes.mkdir(0o700)
        common = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONMALLOC": "malloc",  # each object is watched
            "LD_PRELOAD": address_runtime(),
            "ASAN_OPTIONS": "detect_leaks=0",
            "XDG_CACHE_HOME": str(watched_cache()),
            OTEL_PYTHON_TORCHDIST_CAPTURE: "native",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "WORLD_SIZE": str(ranks),
            "TAPES": str(tapes),
            "STORE": f"{folder}/store",
        }
        running = [
            subprocess.Popen(
                [sys.executable, str(WORKERS / f"{worker}.py"), *arguments],
                env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        try:
            errors = [process.communicate(timeout=LIMIT_S)[1] for process in running]
        finally:
            for process in running:
                with process:  # waits, and closes what it was read from
                    process.kill()
        assert [process.returncode for process in running] == [0] * ranks, "\n".join(errors)
        assert not [error for error in errors if "Sanitizer" in error or "runtime error" in error], "\n".join(errors)
        return read_tapes(tapes)


def natively_recorded(tapes: list[RecordedTape]) -> int:
    """How many operations have an end that only the library knows."""
    return sum(operation.how == "CALLBACK" for tape in tapes for operation in tape.operations)


def test_repeated() -> None:
    """Two ranks on gloo: collectives, functional ones, messages, DDP, threads, failures."""
    assert natively_recorded(watched("repeated", 2)) > 50


def test_random_calls() -> None:
    """Random calls of all operations, in several threads."""
    assert natively_recorded(watched("random_calls", 1, "recorded", "3", "60")) > 50
