"""A job that crashes at once says so on its standard error, whatever that is, once for each attempt."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.torchrun.recording import COMMAND, TWO_RANKS, WORKERS, notices, switched_on
from tests.support.commands.running import kill_processes_of
from tests.support.launch.torchrun import Torchrun
from tests.support.launch.warm_python import WarmPython
from tests.support.waiting import until

LINGERS = {"OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "30000", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
SENTENCE = re.compile(r"^otel_torchdist: rank 1 (?:was killed by SIGKILL|is dead)[^\n]*all_reduce", re.MULTILINE)
JOB = [WORKERS / "crashes.py"]


@pytest.fixture(autouse=True)
def none_is_left(tmp_path: Path) -> Iterator[None]:
    """End agents that linger."""
    yield
    kill_processes_of(tmp_path / "tapes")


@pytest.mark.thorough
def test_each_attempt_says_how_it_ended(warm_python: WarmPython, tmp_path: Path) -> None:
    """Two crashes have one sentence and one command each, which names the attempt's run; the third attempt has none."""
    environ = switched_on(tmp_path / "tapes") | LINGERS
    job = Torchrun(warm_python, tmp_path / "output", [*TWO_RANKS, "--max-restarts=2", *JOB, "2"], environ)
    done = job.end()
    assert done.code == 0, done.err
    log = until(lambda: len(COMMAND.findall(job.log)) >= 2 and job.log, what=lambda: job.log)
    assert len(SENTENCE.findall(log)) == 2
    commands = COMMAND.findall(log)
    assert len({run for run, _ in commands}) == 2
    assert {Path(directory).parent for _, directory in commands} == {tmp_path / "tapes"}
    assert notices(log) == 4
    assert "stall: " not in log  # nothing is said twice


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["w", "a"])
def test_log_file_of_a_user(tmp_path: Path, mode: str) -> None:
    """With `2>log` and with `2>>log` all lines of the job are there, and the notice."""
    log = tmp_path / "log"
    environ = {**os.environ, **switched_on(tmp_path / "tapes"), **LINGERS}
    with log.open(mode) as stderr:
        subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", *TWO_RANKS, *JOB, "1"],
            env=environ,
            stderr=stderr,
            check=False,
        )
    text = until(lambda: COMMAND.search(log.read_text()) and log.read_text(), what=log.read_text)
    assert SENTENCE.search(text)
    assert notices(text) == 2
    assert [text.count(f"step {step}\n") for step in range(30)] == [2] * 30
    assert "\0" not in text
    assert "Root Cause" in text


@pytest.mark.thorough
def test_switched_off(warm_python: WarmPython, tmp_path: Path) -> None:
    """With OTEL_PYTHON_TORCHDIST_ANNOUNCE=false the agent's log alone has the verdict."""
    environ = switched_on(tmp_path / "tapes") | LINGERS | {"OTEL_PYTHON_TORCHDIST_ANNOUNCE": "false"}
    job = Torchrun(warm_python, tmp_path / "output", [*TWO_RANKS, *JOB, "1"], environ)
    assert job.end().code == 1
    [log] = (tmp_path / "tapes").glob("job-*/agent.log")
    until(lambda: "WARNING stall: rank 1 " in log.read_text(), what=log.read_text)
    assert notices(job.log) == 0


@pytest.mark.parametrize("reader", ["agent", pytest.param("thread", marks=pytest.mark.thorough)])
def test_stall(warm_python: WarmPython, tmp_path: Path, reader: str) -> None:
    """A stall is announced while it lasts, by one process for the whole job, and only at first."""
    gate = tmp_path / "gate"
    gate.touch()
    settings = {"OTEL_PYTHON_TORCHDIST_READER": reader, "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "1500"}
    environ = switched_on(tmp_path / "tapes") | settings
    command = ["--standalone", "--nproc-per-node=3", WORKERS / "late_rank.py", gate]
    job = Torchrun(warm_python, tmp_path / "output", command, environ)
    try:
        log = until(lambda: COMMAND.search(job.log) and job.log, what=lambda: job.log)
        assert "otel_torchdist: rank 2 has not entered all_reduce" in log
        until(lambda: "\nstall: rank 2 " in job.log, what=lambda: job.log)  # at twice the age, and no notice
        gate.unlink()
        assert job.wait(60) == 0
        assert notices(job.log) == 2
    finally:
        job.close()


@pytest.mark.thorough
def test_rank_logs_for_the_agent(tmp_path: Path) -> None:
    """An agent's lines in a log opened with `2>` would be overwritten: while the job hangs, a rank logs them, once."""
    gate, log = tmp_path / "gate", tmp_path / "log"
    gate.touch()
    settings = {"OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "1500"}
    environ = {**os.environ, **switched_on(tmp_path / "tapes"), **settings}
    ranks = ["--standalone", "--nproc-per-node=3", WORKERS / "late_rank.py", gate]
    with log.open("w") as stderr:
        job = subprocess.Popen([sys.executable, "-m", "torch.distributed.run", *ranks], env=environ, stderr=stderr)
    try:
        text = until(lambda: COMMAND.search(log.read_text()) and log.read_text(), what=log.read_text)
        assert "otel_torchdist: rank 2 has not entered all_reduce" in text
        gate.unlink()
        assert job.wait(60) == 0
        assert notices(log.read_text()) == 2
    finally:
        gate.unlink(missing_ok=True)
        job.terminate()
        job.wait(60)
