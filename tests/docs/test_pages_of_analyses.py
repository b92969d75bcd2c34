"""The commands of pages on analyses work as they stand there, on a job of eight ranks, an archive, dumps and traces."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

import pytest

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.sources.archive.writer import ArchiveWriter
from tests.sources.archive.made import names_beside, operations, segment
from tests.sources.flight.made_dumps import late_rank, write
from tests.support.commands.asking import ask, ask_as_on_page
from tests.support.documented import commands_of, page
from tests.support.repository import REPOSITORY
from tests.support.tapes.fake_tape import RUN_ID
from tests.support.tapes.written_world import WrittenWorld

PAGES: Final = ("advice.md", "archive.md", "critical-path.md", "deaths.md", "graph.md", "report.md")
TRACES: Final = REPOSITORY / "tests" / "sources" / "profiles" / "data"
SKIPPED: Final = ("export ", "torchrun ", "python ", "otel-torchdist demo ")
"""What sets or starts a job, and the line that unpacks a report."""
LABEL: Final = f"{RUN_ID:032x}"[:8]
EXAMPLES: Final = {"01f9d985": LABEL, "1f3a": LABEL, "100-110": "10-12", "0-7,12": "0-7"}
"""The run, steps and ranks of the pages, and those of the job here."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with an archive, dumps and traces."""
    write(tmp_path / "dumps", late_rank())
    shutil.copytree(TRACES, tmp_path / "traces")
    archive = ArchiveWriter(tmp_path / "archive", 1 << 20)
    archive.put(segment(operations(1, 100), 100), names_beside(tmp_path))
    archive.close(10.0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "command"),
    [(name, command) for name in PAGES for command in commands_of(page(name)) if not command.startswith(SKIPPED)],
)
def test_command(name: str, command: str, memory: Path) -> None:
    """It prints something, and ends with the code of a job in which nothing stalls, but whose ranks are gone."""
    WrittenWorld(steps=16).write(memory / "job-0123456789abcdef")
    line = command.replace("/shared/archive", "archive")
    for example, here in EXAMPLES.items():
        line = line.replace(example, here)
    answer = ask_as_on_page(memory, line)
    assert answer.code == (ExitCode.PROBLEM if "diagnose" in line else ExitCode.SUCCESS), line
    assert answer.out, line
    assert answer.err == "" or "archive" in line, line


def test_commands_that_read_archives(memory: Path) -> None:
    """The table on the page lists them, and each other command that takes paths refuses an archive."""
    listed = re.findall(r"^\| `(analyze|export) ?(--\w+)?", page("archive.md"), re.MULTILINE)
    assert listed == [("analyze", ""), ("analyze", "--html"), ("export", "--perfetto"), ("export", "--parquet")]
    for command, option in listed:
        written = (option, option.strip("-")) if option else ()
        assert ask(memory, *written, "archive", command=command).code == ExitCode.SUCCESS, (command, option)
    for command, options in (("diagnose", ()), ("reproduce", ()), ("export", ("--flight-recorder", "out"))):
        assert ask(memory, *options, "archive", command=command).code != ExitCode.SUCCESS, command
