"""One quick run of all benchmarks, for all tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.running import Results, run


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What a quick run prints and writes.

    The run itself fails if a call that should have been recorded is not on a tape, or if a span does not arrive.
    """
    file: Path = tmp_path_factory.mktemp("benchmarks") / "results.json"
    finished = run("--quick", "--json", str(file))
    assert finished.returncode == 0, finished.stderr
    return Results(finished.stdout, json.loads(file.read_text()))
