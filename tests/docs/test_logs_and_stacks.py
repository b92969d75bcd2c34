"""The commands of docs/logs-and-stacks.md, run as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.sources.evidence.texts import py_spy
from tests.sources.evidence import quoted
from tests.sources.evidence.reading import DATA
from tests.sources.flight.made_dumps import late_rank, write_json
from tests.support.commands.asking import ask
from tests.support.documented import commands_of, page

PAGE = page("logs-and-stacks.md")
DIAGNOSES = [command for command in commands_of(PAGE) if command.startswith("otel-torchdist diagnose ")]

PY_SPY = "py-spy dump --pid 4711 > stacks_rank3.txt"
SLEEPER = """
import time


def load_data():
    print("ready", flush=True)
    time.sleep(600)


load_data()
"""


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
    write_json(tmp_path / "dumps", late_rank(2, late=1))
    shutil.copy(DATA / "py_spy.txt", tmp_path / "stacks_rank3.txt")
    (tmp_path / "ras.txt").write_text(quoted.RAS_DEAD)
    yield tmp_path


@pytest.mark.parametrize("command", DIAGNOSES)
def test_command(command: str, leftovers: Path, memory: Path) -> None:
    """Each finds what it is about, and leaves no file unread."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            words = shlex.split(command.replace("4711", str(process.pid)))[2:]
            paths = [str(path) for word in words for path in sorted(leftovers.glob(word.rstrip("/")))]
            answer = ask(memory, *(words if "--pid" in words else paths))
        finally:
            process.kill()
    assert answer.code in (0, 1), answer.err
    assert answer.out
    assert "no reader recognizes" not in answer.err


def test_all_commands_are_known() -> None:
    """The page shows one for each source; besides these, what py-spy is asked below, and what only NCCL can answer."""
    assert len(DIAGNOSES) == 6
    others = [command for command in commands_of(PAGE) if command not in DIAGNOSES]
    assert others == [PY_SPY, "ncclras -v > ras.txt"]


@pytest.mark.skipif(py_spy.program() is None, reason="py-spy is not installed")
def test_py_spy(memory: Path, tmp_path: Path) -> None:
    """What py-spy writes of a process that lives is read by the command that follows on the page."""
    program = py_spy.program()
    assert program is not None
    with subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            environ = {**os.environ, "PATH": f"{Path(program).parent}:{os.environ['PATH']}"}
            command = PY_SPY.replace("4711", str(process.pid))
            done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environ, capture_output=True, timeout=60)
            assert done.returncode == 0, done.stderr
        finally:
            process.kill()
    answer = ask(memory, *sorted(tmp_path.glob("stacks_rank*.txt")))
    assert (answer.code, answer.err) == (0, "")
    assert re.search(r"rank 3\b.*\n?.*load_data", answer.out), answer.out
