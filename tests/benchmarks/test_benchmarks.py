"""The benchmarks run. Their figures are for people on a quiet machine, and are not checked here."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tests.benchmarks.running import KERNELS, TIMEOUT_S, Results, run
from tests.support.repository import REPOSITORY

pytestmark = pytest.mark.timeout(TIMEOUT_S + 30)

GOALS = {
    "start": 2,
    "per_call": 8 if len(KERNELS) == 2 else 2,
    "cold": 2 * len(KERNELS) - 2,
    "growth": 3,
    "step_time": 4 * len(KERNELS),
    "parts": 2 * len(KERNELS) - 2,
    "ddp": 2 * len(KERNELS) - 2,
    "small_collectives": 2,
    "numerics": 2,
    "numerics_steps": 6,
    "own_threads": 1,
    "memory": 4 * len(KERNELS),
    "reading": 0,
    "readers": 0,
    "exporting": 2,
    "agent_memory": 0,
}


MAIN = 'if __name__ == "__main__":'
PROGRAMS = sorted(file for file in (REPOSITORY / "benchmarks").rglob("*.py") if MAIN in file.read_text())
WITHOUT_ARGUMENTS = ("exiting_ranks",)
"""It reads everything from standard input."""


@pytest.mark.parametrize(
    "file", [file for file in PROGRAMS if file.stem not in WITHOUT_ARGUMENTS], ids=lambda f: f.stem
)
def test_programs_explain_their_arguments(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--help` shows the command by which one starts them, and measures nothing."""
    module = ".".join(file.relative_to(REPOSITORY).with_suffix("").parts)
    monkeypatch.setattr(sys, "argv", [str(file), "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(module).main()
    assert ended.value.code == 0
    command = f"usage: python -m {module.removesuffix('.__main__')} [-h]"
    assert capsys.readouterr().out.startswith(command)


@pytest.mark.thorough
@pytest.mark.rare
def test_goals_are_judged(results: Results) -> None:
    """Each goal is printed with its verdict, which matches the figure in the file; noise is not a verdict."""
    judged = {key: section["goals"] for key, section in results.written.items() if key != "machine"}
    assert {key: len(goals) for key, goals in judged.items()} == GOALS
    goals = [goal for of in judged.values() for goal in of]
    for goal in goals:
        assert goal["met"] == (goal["value"] <= goal["limit"] if goal["is_decided"] else None)
    for verdict, met in {"met": True, "MISSED": False, "NOT DECIDED": None}.items():
        assert results.printed.count(f": {verdict}\n") == sum(goal["met"] is met for goal in goals)


@pytest.mark.thorough
@pytest.mark.rare
def test_the_machine_is_described(results: Results) -> None:
    """The machine that the figures were measured on is described."""
    assert {"cpu", "cores", "python", "torch"} <= set(results.written["machine"])
    assert str(results.written["machine"]["cpu"]) in results.printed


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The error for arguments that end the program before it measures anything."""
    from benchmarks.__main__ import main  # imports torch

    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_a_file_that_cannot_be_written_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unwritable results file is reported at once, not after minutes of measuring."""
    said = refused(monkeypatch, capsys, "--json", "/no/such/directory/results.json")
    assert "there is no such directory" in said


def test_one_section_runs_alone() -> None:
    """`--only` measures the sections that it names and no others."""
    finished = run("--quick", "--only", "reading")
    assert finished.returncode == 0, finished.stderr
    assert "Reading a tape" in finished.stdout
    assert "Added to an operation" not in finished.stdout


def test_an_unknown_section_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A section that does not exist is named, with those that do."""
    said = refused(monkeypatch, capsys, "--only", "per_call,nothing")
    assert "--only nothing: the sections are start, per_call, cold" in said
