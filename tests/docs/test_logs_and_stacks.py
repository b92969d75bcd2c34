"""The commands of docs/logs-and-stacks.md, run as they stand there."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.asking import ask
from tests.cli.small_dumps import dump_of
from tests.evidence import quoted
from tests.evidence.reading import DATA
from tests.support.repository import REPOSITORY

PAGE = (REPOSITORY / "docs" / "logs-and-stacks.md").read_text()
COMMANDS = re.findall(r"^otel-torchdist diagnose (.+)$", PAGE, re.MULTILINE)


@pytest.fixture
def leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with everything that the page names."""
    monkeypatch.chdir(tmp_path)
    for log in ("job.log", "slurm-12.out", "logs/node0.log"):
        (tmp_path / log).parent.mkdir(exist_ok=True)
        shutil.copy(DATA / "gloo_raise.log", tmp_path / log)
    errors = tmp_path / "torchelastic-logs" / "none_1" / "attempt_0" / "1"
    errors.mkdir(parents=True)
    shutil.copy(DATA / "error.json", errors)
    (tmp_path / "dumps").mkdir()
    for rank in (0, 1):
        (tmp_path / "dumps" / f"rank_{rank}.json").write_text(json.dumps(dump_of(rank)))
    shutil.copy(DATA / "py_spy.txt", tmp_path / "stacks_rank3.txt")
    (tmp_path / "ras.txt").write_text(quoted.RAS_DEAD)
    yield tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command: str, leftovers: Path, memory: Path) -> None:
    """Each finds what it is about, and leaves no file unread."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            words = shlex.split(command.replace("4711", str(process.pid)))
            paths = [str(path) for word in words for path in sorted(leftovers.glob(word.rstrip("/")))]
            answer = ask(memory, *(words if "--pid" in words else paths))
        finally:
            process.kill()
    assert answer.code in (0, 1), answer.err
    assert answer.out
    assert "no reader here recognizes" not in answer.err


def test_there_are_commands() -> None:
    """The page shows one for each source."""
    assert len(COMMANDS) == 6
