"""`otel-torchdist diagnose` of many ranks, and on terminals that cannot show their names."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.tape.names.model import CallSiteName, GroupName, SignatureName
from tests.support.commands.asking import Answer, ask, ask_as_people_do
from tests.support.tapes.fake_tape import FakeTape

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
    call = SignatureName("all_reduce", "sum", ((4,),), ("float32",), "cpu", 1)
    for rank in range(RANKS):
        one = FakeTape(directory, rank, RANKS, 0xAB << 120, capacity=64)
        names = one.writer.names
        everybody, all_reduce = names.intern(group), names.intern(call)
        line = names.intern(CallSiteName(FUNCTION, "/home/u/train.py", 42))
        for sequence in range(1, 3 + (rank != LATE)):
            now_ns = time.monotonic_ns() - 20_000_000_000
            number = one.writer.begin(now_ns, 0, sequence, 16, everybody, all_reduce, line, 0, -1, 0, 1, 1, 0)
            if sequence < 3:
                one.writer.complete(number, now_ns, now_ns + 1000, 3)
        one.writer.beat()
        one.reader.close()
        one.writer.close()
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


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("arguments", [("diagnose",), ("watch", "--plain", "--keep", "0", "--run-dir", ".")])
def test_narrow_encodings(base: Path, encoding: str, arguments: tuple[str, ...]) -> None:
    """Characters that an encoding lacks are written as numbers, and the exit code is the same as elsewhere."""
    directory = base / "job-00000000000000aa"
    words = [str(directory) if word == "." else word for word in arguments]
    answer = said(base, encoding, *words)
    assert "Traceback" not in answer.err
    assert answer.code == (1 if "diagnose" in arguments else 0)
    if "diagnose" in arguments:
        assert (FUNCTION if encoding == "utf-8" else r"eval_\u6a21\u578b") in answer.out


def said(base: Path, encoding: str, *arguments: str) -> Answer:
    """Output of the command in this encoding, for both `diagnose` and `watch`."""
    environ = {"PYTHONIOENCODING": encoding, "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "1000"}
    return ask_as_people_do(base, *arguments, **environ)


def test_exit_codes(base: Path) -> None:
    """An invalid command line, and a bug of ours, have exit codes that state nothing about runs."""
    assert ask(base, "--nonsense").code == ask(base, "--threshold", "soon").code == 64
    assert ask(base, "feed").code == 2
    broken = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, check=False)
    assert broken.returncode == 70
    assert broken.stderr.endswith("ZeroDivisionError: division by zero\n")
