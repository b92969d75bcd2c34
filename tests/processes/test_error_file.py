"""torchelastic's error file: the exception that ended a rank is reported; other content there is not trusted."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.job.runs.lives import MAX_ERROR, death_path, read_death, write_death
from otel_torchdist.model.lives import Death
from otel_torchdist.processes.death_watch import DeathWatch
from otel_torchdist.processes.endings import error_file_of, error_in
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.verdict.wording.ends import describe_way
from tests.processes.test_death_watch import DyingRanks
from tests.support.waiting import until

EXITED_3 = 3 << 8
SECRET = "hunter2"


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[DyingRanks]:
    """A directory for their tapes."""
    ranks = DyingRanks(tmp_path)
    yield ranks
    ranks.close()


def written(path: Path, message: str) -> None:
    """Write it as `@record` of torch.distributed.elastic does."""
    extra = {"py_callstack": "Traceback (most recent call last):\n ...", "timestamp": "1"}
    path.write_text(json.dumps({"message": {"message": message, "extraInfo": extra}}))


@pytest.mark.parametrize("code", [3, 0])
def test_rank_that_has_left_its_error(ranks: DyingRanks, tmp_path: Path, code: int) -> None:
    """The death and its file show type and first line; for a rank that exited with code 0 nothing is read."""
    file = tmp_path / "error.json"
    written(file, "ValueError: loss is nan\nat step 7")
    environ = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(file), "PASSWORD": SECRET}
    process = ranks.start(env=environ)
    tape, watch = TapeReader(ranks.tapes[0]), DeathWatch()
    try:
        watch.follow(tape.path, tape.identity, tape.owner)
        assert process.stdin is not None
        process.stdin.write(f"exit {code}\n")
        process.stdin.flush()
        until(lambda: (found := read_death(tape.path)) is not None and (found.error or found.status == 0))
        death = watch.death_of(tape.identity.nonce)
    finally:
        watch.stop()
        tape.close()
    assert death is not None
    assert (death.exit_code, death.error) == (code, "ValueError: loss is nan" if code else "")
    assert read_death(ranks.tapes[0]) == death
    assert describe_way(death) == ("ended with exit code 3 (ValueError: loss is nan)" if code else "exited with code 0")
    assert SECRET not in death_path(ranks.tapes[0]).read_text()


def test_path_of_a_living_process(tmp_path: Path) -> None:
    """Only this variable, only an absolute path, and only of an existing process."""
    file = tmp_path / "error.json"
    for value, expected in ((str(file), file), ("error.json", None), ("", None)):
        environ = {**os.environ, "TORCHELASTIC_ERROR_FILE": value}
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environ) as process:
            until(lambda pid=process.pid, path=expected: error_file_of(pid) == path)  # it may still be starting
    assert error_file_of(process.pid) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_process_of_another_user(tmp_path: Path) -> None:
    """The environment of another user's process is not read, though root could."""
    environ = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=environ, user=65534) as process:
        assert error_file_of(process.pid) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"message": 1}',
        b'{"message": {}}',
        b"[" * 5000,
        b"\xff\xfe",
        b'"' + b"x" * (2 << 20) + b'"',
    ],
    ids=["empty", "list", "nothing", "number", "no message", "deep", "bytes", "long"],
)
def test_file_that_is_something_else(tmp_path: Path, content: bytes) -> None:
    """Such a file yields no exception."""
    file = tmp_path / "error.json"
    file.write_bytes(content)
    assert error_in(file) == ""


def test_file_that_leads_astray(tmp_path: Path) -> None:
    """No link is followed, no pipe blocks the reader, and no other user's file is read."""
    file, link, pipe = tmp_path / "error.json", tmp_path / "link", tmp_path / "pipe"
    written(file, "ValueError: loss is nan")
    link.symlink_to(file)
    os.mkfifo(pipe)
    assert [error_in(path) for path in (link, pipe, tmp_path / "none", tmp_path)] == [""] * 4
    assert error_in(file) == "ValueError: loss is nan"
    if os.geteuid() == 0:
        os.chown(file, 65534, 65534)
        assert error_in(file) == ""


def test_text_is_short_and_shown_safely(tmp_path: Path) -> None:
    """One line without control characters, from the file and from what another user may have written about a death."""
    file = tmp_path / "error.json"
    written(file, "ValueError: \x1b[31mred" + "x" * 1000)
    assert error_in(file).startswith(r"ValueError: \x1b[31mred")
    assert len(error_in(file)) <= MAX_ERROR
    tape = tmp_path / "1234.tape"
    write_death(tape, Death(1, status=EXITED_3, error="\x1b[31mred\n"))
    death = read_death(tape)
    assert death is not None and death.error == r"\x1b[31mred\n"
    death_path(tape).write_text(json.dumps({"nonce": "1234", **dataclasses.asdict(death), "error": 7}))
    assert read_death(tape) is None
