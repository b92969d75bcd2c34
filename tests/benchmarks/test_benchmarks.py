"""The benchmarks run. Their figures are read by people, on a quiet machine, and not here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
VARIANTS = {"bare", "empty kernel", "ours", "record_function", "naive, no export", "naive"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmarks as `make bench` does."""
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """What a quick run prints and what it writes."""
    file = tmp_path_factory.mktemp("benchmarks") / "results.json"
    finished = run("--quick", "--json", str(file))
    assert finished.returncode == 0, finished.stderr
    return finished.stdout, json.loads(file.read_text())


def test_every_variant_is_timed(results: tuple[str, dict[str, Any]]) -> None:
    """Each call is timed in each variant, and an instrumented call never takes no time at all.

    The run itself fails when a span did not reach the sink or a call is not on the tape.
    """
    _, written = results
    collectives = written["per_call"]["collectives"]
    assert len(collectives) == 5
    for collective in collectives.values():
        assert set(collective["variants"]) == VARIANTS
        assert all(min(variant["rounds"]) > 0 for variant in collective["variants"].values())


def test_every_stage_of_reading_is_timed(results: tuple[str, dict[str, Any]]) -> None:
    """A stage of the reader has a figure for each round."""
    _, written = results
    stages = written["reading"]["stages"]
    assert len(stages) == 5
    assert all(len(stage["rounds"]) == written["reading"]["count"] for stage in stages.values())


def test_goals_are_judged(results: tuple[str, dict[str, Any]]) -> None:
    """Each goal is printed with its verdict, which fits the figure in the file."""
    printed, written = results
    goals = written["per_call"]["goals"]
    assert len(goals) == 2
    assert all(goal["met"] == (goal["value"] <= goal["limit"]) for goal in goals)
    assert printed.count(": met\n") + printed.count(": MISSED\n") == len(goals)


def test_the_machine_is_described(results: tuple[str, dict[str, Any]]) -> None:
    """Figures say what they were measured on."""
    printed, written = results
    assert {"cpu", "cores", "python", "torch"} <= set(written["machine"])
    assert str(written["machine"]["cpu"]) in printed


def test_a_file_that_cannot_be_written_is_refused_at_once() -> None:
    """Nobody waits for minutes to learn that the results have no place."""
    finished = run("--json", "/no/such/directory/results.json")
    assert finished.returncode == 2
    assert "there is no such directory" in finished.stderr
