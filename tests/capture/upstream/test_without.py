"""A torch without one of the symbols in the table: training goes on, and the log has at most one line of ours.

Each symbol is taken away before our code is imported into a process of its own. Where torch itself needs the symbol
(`needed.py` has the reasons) our program has another name for it, as if torch had renamed it. The programs in `workers`
then train, compile, call remotely or launch ranks that fail.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from otel_torchdist import environment_variables as env
from otel_torchdist.capture.upstream.symbol import Loss, TorchSymbol, release_of
from tests.capture.upstream.needed import NEEDED_BY_TORCH
from tests.capture.upstream.programs_of import SYMBOLS_OF
from tests.support.repository import REPOSITORY

pytestmark = [pytest.mark.process, pytest.mark.thorough, pytest.mark.rare, pytest.mark.timeout(900)]

ROWS = [(program, symbol) for program, symbols in SYMBOLS_OF.items() for symbol in symbols]
OBSERVED = {env.OTEL_PYTHON_TORCHDIST_NUMERICS: "all", env.OTEL_PYTHON_TORCHDIST_COMPARE_PARAMETERS: "1"}
RENAMED = "_of_another_torch"


class RunWithout(NamedTuple):
    """A run of a program.

    Attributes:
        exit: Its exit code.
        loss: The number that the program computes.
        messages: Messages of our logger.
        errors: Its standard output and error.
        tapes: Number of tapes that it left.
    """

    exit: int
    loss: float | None
    messages: list[str]
    errors: str
    tapes: int


class Runs:
    """The runs of all programs. Each program runs when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._by_program: dict[str, dict[tuple[str, bool], RunWithout]] = {}

    def of(self, program: str) -> dict[tuple[str, bool], RunWithout]:
        """Return the runs by the path of the missing symbol ('' for none), and whether they were recorded."""
        if program not in self._by_program:
            self._by_program[program] = {
                (run["symbol"], run["is_recorded"]): _parsed(run) for run in self._start(program)
            }
        return self._by_program[program]

    def _start(self, program: str) -> list[dict[str, Any]]:
        environ = {
            **os.environ,
            env.OTEL_PYTHON_TORCHDIST_READER: "none",
            env.OTEL_PYTHON_TORCHDIST_CAPTURE: "python",
            env.OTEL_PYTHON_TORCHDIST_ABORT_HOOKS: "true",
            env.OTEL_PYTHON_TORCHDIST_TAPE_ON_DISK: "true",
            **(OBSERVED if program in ("ddp", "sharded") else {}),
        }
        command = [
            sys.executable,
            "-m",
            "tests.capture.upstream.workers.without",
            program,
            str(self._folder / program),
        ]
        done = subprocess.run(command, cwd=REPOSITORY, env=environ, stdout=subprocess.PIPE, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]


def _parsed(run: dict[str, Any]) -> RunWithout:
    return RunWithout(run["exit"], run.get("loss"), run.get("messages", []), run["errors"], run["tapes"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The runs of all programs."""
    return Runs(tmp_path_factory.mktemp("without"))


@pytest.mark.parametrize("program", SYMBOLS_OF)
def test_program(runs: Runs, program: str) -> None:
    """The program itself runs: with a complete torch, recording changes no result and logs nothing."""
    bare, recorded = runs.of(program)["", False], runs.of(program)["", True]
    assert (bare.exit, bare.tapes) == (0, 0)
    assert (recorded.exit, recorded.loss, recorded.messages) == (0, bare.loss, [])
    assert (recorded.tapes > 0) == (program != "launch")


@pytest.mark.parametrize(("program", "symbol"), ROWS, ids=[symbol.path for _, symbol in ROWS])
def test_training_goes_on(runs: Runs, program: str, symbol: TorchSymbol) -> None:
    """Without the symbol the program has the same result and exit code, and the log at most the symbol's own line."""
    if symbol.path not in {path for path, _ in runs.of(program)}:
        pytest.skip("this torch does not have it")
    bare, run = runs.of(program)["", False], runs.of(program)[symbol.path, True]
    assert (run.exit, run.loss) == (0, bare.loss), run.errors
    path = symbol.path + RENAMED if symbol.of_instances or symbol.path in NEEDED_BY_TORCH else symbol.path
    line = f"this torch has no {path}: {symbol.without}"
    assert run.messages in ([], [line])
    assert "Traceback" not in run.errors.replace(bare.errors, "")
    if symbol.loss is Loss.RECORDING:
        assert (run.messages, run.tapes) == ([line], 0)
    if symbol.loss is Loss.NOTHING:
        assert run.messages == []


def test_most_symbols_are_reported(runs: Runs) -> None:
    """The programs reach the symbols: three of four with a warning are really missed by the run without them."""
    warned = [(program, symbol) for program, symbol in ROWS if symbol.loss is Loss.FEATURE and not symbol.builds]
    expected = [row for row in warned if release_of(row[1].since) <= release_of(torch.__version__)]
    missed = [symbol.path for program, symbol in expected if runs.of(program)[symbol.path, True].messages]
    assert len(missed) >= 0.75 * len(expected)
