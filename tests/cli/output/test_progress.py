"""Progress bars: their text, when they appear, and that they are never in a pipe."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pyte
import pytest

from otel_torchdist.cli.output import progress as bars
from otel_torchdist.cli.output.progress import showing_progress
from otel_torchdist.cli.output.work import BYTES, SECONDS, Work
from otel_torchdist.system.progress import progress, track, unreported
from tests.support.commands.asking import ask_as_people_do
from tests.support.commands.terminal import Terminal
from tests.support.tapes.directories import memory_directory
from tests.support.tapes.written_world import WrittenWorld

BAR = r"Reading tapes .*\d+ of 64 tapes, [\d.]+/s, \d+ s left"
COLOR = re.compile(r"\x1b\[(\d+;)*(3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]")


@pytest.mark.parametrize(
    ("work", "after_s", "text"),
    [
        (Work("", "tapes", 4_096, 1_024, begun_s=0), 10.0, "1,024 of 4,096 tapes, 102/s, 30 s left"),
        (Work("", "tapes", 4, 0, begun_s=0), 10.0, "0 of 4 tapes, 0.0/s"),
        (Work("", "tapes", 3, 3, begun_s=0), 2.0, "3 of 3 tapes, 1.5/s"),
        (Work("", "dumps", None, 12, begun_s=0), 1.0, "12 dumps, 12/s"),
        (Work("", "calls", 1_000_000, 1_000, begun_s=0), 1.0, "1,000 of 1,000,000 calls, 1,000/s, 16 min 39 s left"),
        (Work("", BYTES, None, 3 << 20, begun_s=0), 2.0, "3.00 MiB, 1.50 MiB/s"),
        (Work("", SECONDS, 30, begun_s=0), 12.0, "18 s left"),
        (Work("", SECONDS, 5, begun_s=0), 7.0, "0 s left"),
        (Work("", "", None, begun_s=0), 75.0, "1 min 15 s"),
    ],
)
def test_figures(work: Work, after_s: float, text: str) -> None:
    """Amount, rate and the time left, as far as they are known."""
    assert work.figures(after_s) == text


def test_nothing_outside_a_command() -> None:
    """Outside a command, progress is not shown."""
    assert list(track([1, 2, 3], "Counting", "numbers", 3)) == [1, 2, 3]
    with progress("Waiting") as advance:
        assert advance is unreported


def test_nothing_in_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """FORCE_COLOR does not force a bar into a pipe."""
    monkeypatch.setattr(bars, "APPEARS_AFTER_S", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with showing_progress():
        for _ in track(range(3), "Counting", "numbers", 3):
            time.sleep(0.02)
    assert capsys.readouterr() == ("", "")


@pytest.fixture(scope="module")
def tapes() -> Iterator[Path]:
    """Tapes of a job of 64 ranks, which take more than a second to read."""
    with memory_directory() as base:
        folder = base / "job"
        WrittenWorld(ranks=64, tensor=8, layers=8, steps=180).write(folder, capacity=12_288)
        yield folder


def screen_of(terminal: Terminal) -> list[str]:
    """The lines that a terminal shows in the end."""
    screen = pyte.HistoryScreen(100, 400)
    pyte.Stream(screen).feed(terminal.shown)
    return [line.rstrip() for line in screen.display]


def test_on_a_terminal(tapes: Path, tmp_path: Path) -> None:
    """The bar has a rate and the time left, is erased at the end, and is not in the output."""
    output = tmp_path / "calls.csv"
    terminal = Terminal(
        tapes.parent,
        "analyze",
        "--only",
        "calls",
        "--csv",
        "--run-dir",
        tapes,
        output=output,
        environ={"NO_COLOR": "1"},
    )
    try:
        terminal.wait_for(BAR)
        assert terminal.end() == 0
    finally:
        terminal.close()
    assert not any(screen_of(terminal))
    assert output.read_text().startswith("operation,") and "Reading" not in output.read_text()
    assert not COLOR.search(terminal.shown)


def test_before_a_report(tapes: Path) -> None:
    """Where output and bar are on one terminal, the report is all that stays."""
    terminal = Terminal(tapes.parent, "diagnose", "--run-dir", tapes)
    try:
        terminal.wait_for(BAR)
        terminal.end()
    finally:
        terminal.close()
    assert COLOR.search(terminal.shown)
    lines = screen_of(terminal)
    assert lines[0].startswith("run 1234abcd, started ")
    assert not any("Reading tapes" in line for line in lines)


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {"TERM": ""}])
def test_terminal_that_cannot_erase(tapes: Path, environ: dict[str, str]) -> None:
    """A terminal without cursor movement gets no bar."""
    terminal = Terminal(tapes.parent, "diagnose", "--run-dir", tapes, environ=environ)
    try:
        terminal.end()
    finally:
        terminal.close()
    assert "run 1234abcd" in terminal.text and "Reading" not in terminal.text


def test_piped(tapes: Path) -> None:
    """A pipe gets the output, and nothing on standard error."""
    answer = ask_as_people_do(tapes.parent, "analyze", "--run-dir", tapes, FORCE_COLOR="1", TERM="xterm-256color")
    assert (answer.code, answer.err) == (0, "")
    assert "\x1b[" in answer.out and "Reading" not in answer.out
    answer = ask_as_people_do(tapes.parent, "analyze", "--run-dir", tapes, FORCE_COLOR="1", NO_COLOR="1")
    assert not COLOR.search(answer.out)


@pytest.mark.parametrize(
    "arguments",
    [["export", "--perfetto"], ["export", "--flight-recorder"], ["export", "--parquet"], ["analyze", "--html"]],
)
def test_interrupted(tapes: Path, tmp_path: Path, arguments: list[str]) -> None:
    """Ctrl-C erases the bar and leaves no file, whole or half."""
    terminal = Terminal(tapes.parent, *arguments, tmp_path / "out", "--run-dir", tapes)
    try:
        terminal.wait_for("(Reading|Converting|Writing) [a-z ]+━")
        terminal.type(b"\x03")
        assert terminal.end() == 130
    finally:
        terminal.close()
    assert list(tmp_path.iterdir()) == []
    lines = [line for line in screen_of(terminal) if line]
    assert all(line in ("^C", "Aborted.") for line in lines), lines
