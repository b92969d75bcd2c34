"""Every command of the page on leftovers, run as it stands there."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import Final

import pytest

from tests.sources.flight.made_dumps import late_rank, write
from tests.support.commands.asking import ask, ask_as_on_page
from tests.support.documented import block_after, commands_of, page
from tests.support.receivers.otlp_receiver import OtlpReceiver
from tests.support.repository import REPOSITORY

PAGE: Final = page("leftovers.md")
REAL: Final = REPOSITORY / "tests" / "sources" / "flight" / "data" / "lock_gil_1st"
COMMANDS: Final = commands_of(PAGE)
DIAGNOSES: Final = [command for command in COMMANDS if command.startswith("otel-torchdist diagnose ")]
ENDPOINT: Final = "http://localhost:4317"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the files that the page names."""
    shutil.copytree(REAL, tmp_path / "dumps")
    (tmp_path / "dumps" / "fault_injection.log").unlink()
    (tmp_path / "more").mkdir()
    shutil.copy(tmp_path / "dumps" / "_dump_15", tmp_path / "more" / "nccl_trace_rank_15")
    with tarfile.open(tmp_path / "dumps.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "dumps", "dumps")
    write(tmp_path / "gloo", late_rank())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_all_commands_are_known() -> None:
    """Besides those below, the page has the loop that sends a file, which runs against a Jaeger in another test."""
    others = [command for command in COMMANDS if command not in DIAGNOSES]
    assert [command.split()[:2] for command in others] == [["otel-torchdist", "export"], ["while", "read"]]


@pytest.mark.parametrize("command", dict.fromkeys(DIAGNOSES))
def test_diagnose(folder: Path, memory: Path, command: str) -> None:
    """It does what the page says, and ends with the code of a verdict."""
    if "more/" in command:
        (folder / "dumps" / "_dump_15").unlink()
    answer = ask_as_on_page(memory, command)
    assert (answer.code, answer.err) == (1, "")
    assert "has not entered" in answer.out or "have not entered" in answer.out


def test_report_on_the_page(memory: Path) -> None:
    """The report that the page shows is that of these dumps."""
    answer = ask(memory, REAL, TZ="UTC", threshold_s=10.0)
    assert answer.out.startswith(block_after(PAGE, "held the GIL in native code:"))


def test_spans(memory: Path) -> None:
    """It sends the spans of the same dumps, and prints what the page shows."""
    [command] = [command for command in COMMANDS if command.startswith("otel-torchdist export --otlp ")]
    shown = block_after(PAGE, f"{command}\n```")
    with OtlpReceiver() as receiver:
        answer = ask_as_on_page(memory, command.replace(ENDPOINT, receiver.endpoint), threshold_s=10.0)
        assert (answer.code, answer.err) == (0, "")
        assert answer.out == shown.replace(ENDPOINT, receiver.endpoint)
        assert f"sent {len(receiver.spans())} spans" in shown
