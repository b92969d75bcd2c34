"""Every command of the page on leftovers, run as it stands there."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Final

import pytest

from tests.flight.made_dumps import late_rank, write
from tests.support.commands.running import SCRIPT, environment
from tests.support.pages import block_after, commands_of, page
from tests.support.receivers.otlp_receiver import OtlpReceiver
from tests.support.repository import REPOSITORY

PAGE: Final = page("leftovers.md")
REAL: Final = REPOSITORY / "tests" / "flight" / "data" / "lock_gil_1st"
COMMANDS: Final = commands_of(PAGE)
DIAGNOSES: Final = [command for command in COMMANDS if command.startswith("otel-torchdist diagnose ")]
ENDPOINT: Final = "http://localhost:4317"
pytestmark = pytest.mark.process


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of which the page speaks."""
    shutil.copytree(REAL, tmp_path / "dumps")
    (tmp_path / "dumps" / "fault_injection.log").unlink()
    (tmp_path / "more").mkdir()
    shutil.copy(tmp_path / "dumps" / "_dump_15", tmp_path / "more" / "nccl_trace_rank_15")
    with tarfile.open(tmp_path / "dumps.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "dumps", "dumps")
    write(tmp_path / "gloo", late_rank())
    return tmp_path


def run(command: str, folder: Path, base: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell."""
    environ = {**environment(base), "PATH": f"{SCRIPT.parent}:/usr/bin:/bin"}
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False
    )


def test_all_commands_are_known() -> None:
    """Besides those below, the page has the loop that sends a file, which runs against a Jaeger in another test."""
    others = [command for command in COMMANDS if command not in DIAGNOSES]
    assert [command.split()[:2] for command in others] == [["otel-torchdist", "import"], ["while", "read"]]


@pytest.mark.parametrize("command", dict.fromkeys(DIAGNOSES))
def test_diagnose(folder: Path, memory: Path, command: str) -> None:
    """It does what the page says, and ends with the code of a verdict."""
    if "more/" in command:
        (folder / "dumps" / "_dump_15").unlink()
    done = run(command, folder, memory)
    assert (done.returncode, done.stderr) == (1, "")
    printed = done.stdout or (folder / "diagnosis.json").read_text()
    assert "has not entered" in printed or "have not entered" in printed


def test_report_on_the_page() -> None:
    """The report that the page shows is that of these dumps."""
    done = subprocess.run(
        [str(SCRIPT), "diagnose", str(REAL)], capture_output=True, text=True, timeout=60, env={"TZ": "UTC"}, check=False
    )
    assert done.stdout.startswith(block_after(PAGE, "held the GIL in native code:"))


def test_import(folder: Path, memory: Path) -> None:
    """It sends the spans of the same dumps, and prints what the page shows."""
    [command] = [command for command in COMMANDS if command.startswith("otel-torchdist import ")]
    shown = block_after(PAGE, f"{command}\n```")
    with OtlpReceiver() as receiver:
        done = run(command.replace(ENDPOINT, receiver.endpoint), folder, memory)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == shown.replace(ENDPOINT, receiver.endpoint)
        assert f"sent {len(receiver.spans())} spans" in shown
