"""One quick run of all benchmarks, for all tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.running import Results, run


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What a quick run prints and what it writes.

    The run itself fails when a call that should have been recorded is not on a tape, or a span did not arrive.
    """
    file: Path = tmp_path_factory.mktemp("benchmarks") / "results.json"
    finished = run("--quick", "--json", str(file))
    assert finished.returncode == 0, finished.stderr
    return Results(finished.stdout, json.loads(file.read_text()))
