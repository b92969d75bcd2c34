"""`otel-torchdist diagnose` of many ranks, and on terminals that cannot show their names."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.model.names import CallSiteName, GroupName
from tests.support.commands.asking import ask, ask_as_people_do
from tests.support.tapes.fake_tape import SECOND, FakeTape

RANKS = 40
LATE = 17
FUNCTION = "eval_模型"
BROKEN = """
from otel_torchdist import cli
from otel_torchdist.cli import app

app.app = lambda: 1 / 0
cli.main()
"""


@pytest.fixture(scope="module")
def base(module_base: Path) -> Iterator[Path]:
    """All ranks but one wait in an all_reduce, and are then killed."""
    directory = module_base / "job-00000000000000aa"
    directory.mkdir(mode=0o700)
    group = GroupName("0", "default_pg", tuple(range(RANKS)), 0, "gloo", True)
    line = CallSiteName(FUNCTION, "/home/u/train.py", 42)
    at = time.monotonic_ns() - 20 * SECOND
    for rank in range(RANKS):
        one = FakeTape(directory, rank, RANKS, 0xAB << 120, capacity=64)
        for sequence in (1, 2):
            one.run("all_reduce", group, at=at, lasts=1000, sequence=sequence, call_site=line)
        if rank != LATE:
            one.begin("all_reduce", group, at=at, sequence=3, call_site=line)
        one.die()
    yield module_base


def test_ranks_that_do_the_same(base: Path) -> None:
    """Ranks that do the same share a paragraph, after that of the rank that holds them up; JSON lists each one."""
    answer = ask(base)
    assert answer.code == 1
    paragraphs = [text.splitlines()[0] for text in answer.out.split("\n\n")]
    assert re.match(f"verdict  rank {LATE} has not entered all_reduce", paragraphs[1])
    assert re.match(f"rank {LATE}  dead", paragraphs[2])
    assert paragraphs[3].startswith(
        f"ranks 0-{LATE - 1},{LATE + 1}-{RANKS - 1}  {RANKS - 1} ranks do the same; the longest wait:"
    )
    assert len(answer.out.splitlines()) < 20
    assert len(ask(base, "--json").document["ranks"]) == RANKS


@pytest.mark.parametrize(
    ("encoding", "function"), [("ascii", r"eval_\u6a21\u578b"), ("latin-1", r"eval_\u6a21\u578b"), ("utf-8", FUNCTION)]
)
@pytest.mark.parametrize("command", ["diagnose", pytest.param("watch", marks=pytest.mark.thorough)])
def test_narrow_encodings(base: Path, encoding: str, function: str, command: str) -> None:
    """Characters that an encoding lacks are written as numbers, and the exit code is the same as elsewhere."""
    options = [] if command == "diagnose" else ["--plain", "--keep", "0", "--run-dir", base / "job-00000000000000aa"]
    environ = {"PYTHONIOENCODING": encoding, "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "1000"}
    answer = ask_as_people_do(base, command, *options, **environ)
    assert ("Traceback" in answer.err, answer.code) == (False, int(command == "diagnose"))
    assert command == "watch" or function in answer.out


def test_exit_code_of_a_bug() -> None:
    """A bug of ours has an exit code that states nothing about runs."""
    broken = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, check=False)
    assert broken.returncode == 70
    assert broken.stderr.endswith("ZeroDivisionError: division by zero\n")
