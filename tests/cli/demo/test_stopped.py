"""The demo when it is stopped, when its terminal is closed, and when the training fails."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.cli.exit_codes import ExitCode
from tests.support.commands.running import Running, processes_of
from tests.support.commands.terminal import Terminal
from tests.support.launch.forked_ranks import with_forked_ranks
from tests.support.waiting import until

QUICK = ("--ranks", "2", "--steps", "40", "--threshold", "1.5", "--block-seconds", "120")


def test_sigterm_while_it_starts(start: Callable[..., Running], base: Path, tmp_path: Path) -> None:
    """SIGTERM to the demo alone, before there is a rank: torchrun ends with it."""
    demo = start("demo", *QUICK, "--output", tmp_path / "spans.jsonl")
    until(lambda: len(processes_of(base)) >= 2)
    demo.process.send_signal(signal.SIGTERM)
    assert demo.end() == 128 + signal.SIGTERM
    assert (processes_of(base), list(base.iterdir())) == ([], [])


def test_failure_is_reported(start: Callable[..., Running], base: Path, tmp_path: Path) -> None:
    """When the training fails, the demo shows the reason, and fails too."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('this torch is broken')")
    demo = start("demo", *QUICK, "--output", tmp_path / "spans.jsonl", environ={"PYTHONPATH": str(tmp_path)})
    assert demo.end() == 3
    assert "ImportError: this torch is broken" in demo.err
    assert demo.err.endswith("otel-torchdist: the training failed: torchrun ended with exit code 1\n")
    assert processes_of(base) == []


@pytest.fixture
def start_terminal(base: Path, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Starts the demo in a terminal."""
    with contextlib.ExitStack() as at_end:

        def start(**options: Any) -> Terminal:
            forked = with_forked_ranks({}, "sklearn.datasets")
            terminal = Terminal(base, "demo", *QUICK, "--output", tmp_path / "spans.jsonl", environ=forked, **options)
            at_end.callback(terminal.close)
            return terminal

        yield start


@pytest.mark.thorough
def test_table_and_ctrl_c(start_terminal: Callable[..., Terminal], base: Path, tmp_path: Path) -> None:
    """A terminal shows a changing table, with the late rank and its line; Ctrl-C leaves no process behind.

    torchrun and each of its ranks have their own sessions, which the terminal's signal does not reach.
    """
    terminal = start_terminal()
    terminal.wait_for(r"rank +state +step +steps/s +coll/s +operation +group +age")
    terminal.wait_for(r"0 +starting +0")
    terminal.wait_for(r"╭─ stall ─+╮")
    terminal.wait_for(r"0 +stalled +\d+ .*all_reduce .*DDP bucket .* +[\d.]+ s +train\.py:\d+ train *\n")
    terminal.wait_for(r"1 +absent +\d+ .*not in .*DDP bucket .* +[\d.]+ s +train\.py:\d+ Digits\.__getitem__ *\n")
    terminal.wait_for(r"Digits\.__getitem__ at train\.py:\d+")
    terminal.wait_for(r"steps [━╸╺]+ +[1-9]\d*/40")
    # The demo, torchrun, two ranks, the agent; now and then its process that finds the critical path.
    until(lambda: len(processes_of(base)) == 5)
    terminal.type(b"\x03")
    terminal.wait_for(r"Stopped by SIGINT: no process of the training is left")
    assert terminal.process.wait(60) == 128 + signal.SIGINT
    assert (processes_of(base), list(base.iterdir())) == ([], [])
    assert "all_reduce (in progress)" in (tmp_path / "spans.jsonl").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("is_controlling", [True, False], ids=["signal", "no signal"])
def test_terminal_is_closed(start_terminal: Callable[..., Terminal], base: Path, is_controlling: bool) -> None:
    """When the terminal is closed everything ends, although the demo can no longer print anything.

    What it prints may fail before SIGHUP comes, and from a terminal that does not control it none ever comes.
    """
    terminal = start_terminal(is_controlling=is_controlling)
    terminal.wait_for(r"0 +starting +0")
    until(lambda: len(processes_of(base)) >= 4, 150, "torchrun does not start its ranks")
    terminal.hang_up()
    assert terminal.process.wait(60) == ExitCode.HUNG_UP
    assert (processes_of(base), list(base.iterdir())) == ([], [])
