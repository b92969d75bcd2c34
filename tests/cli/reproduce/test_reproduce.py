"""`otel-torchdist reproduce` at the terminal: where the script goes, what is refused, and with which exit code."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.model.names import CallSiteName, GroupName
from tests.support.commands.asking import Answer, ask, ask_as_people_do
from tests.support.tapes.fake_tape import RUN, SECOND, FakeTape

SIZE: Final = 3
HOSTILE: Final = 'x"""\nimport subprocess\n#'
GROUP: Final = GroupName("1", HOSTILE, tuple(range(SIZE)), 1, "gloo", True)
SITE: Final = CallSiteName(HOSTILE, f"/home/user/{HOSTILE}.py", 7)


@pytest.fixture
def tapes(base: Path) -> list[FakeTape]:
    """Tapes of a job."""
    directory = base / "job-000000000000000a"
    directory.mkdir(mode=0o700)
    return [FakeTape(directory, rank, SIZE) for rank in range(SIZE)]


def wait(tapes: list[FakeTape]) -> None:
    """Have ranks wait in an `all_reduce` with hostile names."""
    for tape in tapes:
        tape.begin("all_reduce", GROUP, at=time.monotonic_ns() - 12 * SECOND, call_site=SITE)


def die(tapes: list[FakeTape]) -> None:
    """Kill all ranks."""
    for tape in tapes:
        tape.die()


@pytest.fixture
def hung(base: Path, tapes: list[FakeTape]) -> Path:
    """The base directory of a job that was killed while it waited for rank 2."""
    wait(tapes[:2])
    die(tapes)
    return base


def reproduce(base: Path, *arguments: str | Path) -> Answer:
    """Run the command."""
    return ask(base, *arguments, command="reproduce")


def test_standard_output(hung: Path) -> None:
    """The script alone goes to the standard output; names of the tape are in it as comments and strings only."""
    answer = reproduce(hung)
    assert (answer.code, answer.err) == (0, "")
    compile(answer.out, "hang.py", "exec")
    assert answer.has("if rank == 2:")
    assert not answer.has("import subprocess")
    assert answer.has(r"#     torchrun --nproc-per-node 3 hang\.py")
    assert answer.has(rf"# The job \(run {RUN}, .*\): rank 2 has not entered all_reduce .*")
    assert not answer.has("next:")


def test_file(hung: Path, tmp_path: Path) -> None:
    """An existing file is only replaced with --force."""
    path = tmp_path / "mine.py"
    answer = reproduce(hung, RUN[:4], "-o", path)
    assert (answer.code, answer.out) == (0, "")
    assert "torchrun --nproc-per-node 3 mine.py\n" in path.read_text()
    path.write_text("precious")
    answer = reproduce(hung, "-o", path)
    assert answer.code == ExitCode.NO_DIRECTORY
    assert answer.err.endswith("mine.py exists; --force replaces it\n")
    assert path.read_text() == "precious"
    assert reproduce(hung, "-o", path, "--force").code == 0
    compile(path.read_text(), "mine.py", "exec")


def test_file_that_cannot_be_written(hung: Path, tmp_path: Path) -> None:
    """One line names the file and the reason."""
    answer = reproduce(hung, "-o", tmp_path / "missing" / "hang.py")
    assert answer.code == ExitCode.NO_DIRECTORY
    assert answer.err.endswith("missing/hang.py: No such file or directory\n")
    assert answer.err.count("\n") == 1


def test_without_a_verdict(base: Path, tapes: list[FakeTape]) -> None:
    """A job that does not hang has no script."""
    die(tapes)
    answer = reproduce(base)
    assert (answer.code, answer.out) == (ExitCode.NOT_REPRODUCIBLE, "")
    assert answer.err == "otel-torchdist: no script: there is no verdict: no rank held the others up for long enough\n"


def test_verdict_without_a_script(base: Path, tapes: list[FakeTape]) -> None:
    """If all ranks have entered, no call of a script can be the cause; the line says so."""
    wait(tapes)
    die(tapes)
    answer = reproduce(base)
    assert (answer.code, answer.out) == (ExitCode.NOT_REPRODUCIBLE, "")
    assert answer.err.startswith("otel-torchdist: no script: the verdict is `transport`: all ranks have made the same")


def test_path_without_dumps(hung: Path, tmp_path: Path) -> None:
    """The message names a folder without dumps, and what it contains instead."""
    (tmp_path / "notes.txt").write_text("nothing")
    answer = reproduce(hung, tmp_path)
    assert answer.code == ExitCode.NOTHING_FOUND
    assert answer.err.startswith(f"otel-torchdist: {tmp_path}: no dump of a flight recorder: ")


def test_console_script(hung: Path) -> None:
    """It runs without torch's help, and its help lists its exit codes."""
    answer = ask_as_people_do(hung, "reproduce", COLUMNS="200")
    assert (answer.code, answer.err) == (0, "")
    helped = ask_as_people_do(hung, "reproduce", "--help", COLUMNS="200")
    assert "4: reproduce: no verdict, or a verdict that a script cannot reproduce" in " ".join(helped.out.split())
