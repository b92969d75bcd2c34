"""A launcher whose ranks have failed stays until the notice is written, whatever its standard error is."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.native.ports import free_port
from tests.jobs.torchrun.recording import COMMAND, TWO_RANKS, WORKERS, notices, switched_on
from tests.support.commands.running import kill_processes_of

JOB = WORKERS / "crashes_at_once.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", *TWO_RANKS]
SENTENCE = re.compile(r"^otel_torchdist: rank 1 (?:was killed by SIGKILL|is dead|ended with ValueError)", re.MULTILINE)


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a job that records; agents that linger are ended."""
    yield {**os.environ, **switched_on(tmp_path / "tapes")}
    kill_processes_of(tmp_path / "tapes")


@pytest.mark.parametrize(
    ("how", "when"),
    [
        ("killed", "at once"),
        pytest.param("raises", "at once", marks=pytest.mark.thorough),
        pytest.param("killed", "watched", marks=pytest.mark.thorough),
    ],
)
def test_pipe(environ: dict[str, str], how: str, when: str) -> None:
    """A pipe gets the notice beside torchrun's traceback, also if the ranks end before an agent has come."""
    done = subprocess.run([*TORCHRUN, JOB, how, when], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert SENTENCE.search(done.stderr), done.stderr
    assert COMMAND.search(done.stderr)
    assert notices(done.stderr) == 2
    assert "ChildFailedError" in done.stderr


@pytest.mark.thorough
def test_socket(environ: dict[str, str]) -> None:
    """A socket, as services of systemd have it, cannot be opened again by the agent: the launcher writes for it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        job = subprocess.Popen([*TORCHRUN, JOB, "raises", "watched"], env=environ, stderr=theirs.fileno())
        theirs.close()
        text = b"".join(iter(lambda: ours.recv(1 << 16), b"")).decode()
    assert job.wait() == 1
    assert SENTENCE.search(text), text
    assert notices(text) == 2


@pytest.mark.thorough
def test_parent_that_has_spawned_its_ranks(environ: dict[str, str]) -> None:
    """`torch.multiprocessing.spawn`: the notice comes with the traceback of the program."""
    command = [sys.executable, WORKERS / "spawns.py", "raises", "at once", str(free_port())]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert SENTENCE.search(done.stderr), done.stderr
    assert notices(done.stderr) == 2
    assert "ProcessRaisedException" in done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("reader", ["none", "thread"])
def test_job_without_an_agent(environ: dict[str, str], tmp_path: Path, reader: str) -> None:
    """Where no agent reads, the launcher judges the tapes itself, and starts none; a rank may have said it already."""
    environ["OTEL_PYTHON_TORCHDIST_READER"] = reader
    done = subprocess.run(
        [*TORCHRUN, JOB, "killed", "at once"], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert SENTENCE.search(done.stderr), done.stderr
    assert notices(done.stderr) == 2
    assert not [*(tmp_path / "tapes").glob("job-*/agent.log")]


@pytest.mark.thorough
def test_rank_that_leaves_quietly(environ: dict[str, str]) -> None:
    """`os._exit(0)` before there is an agent: the launcher has seen the code."""
    done = subprocess.run(
        [*TORCHRUN, JOB, "exits", "at once"], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert re.search(r"^otel_torchdist: rank 1 has exited with code 0 before all_reduce", done.stderr, re.MULTILINE)


@pytest.mark.thorough
def test_switched_off(environ: dict[str, str]) -> None:
    """With OTEL_PYTHON_TORCHDIST_ANNOUNCE=false the launcher says nothing either."""
    environ |= {"OTEL_PYTHON_TORCHDIST_READER": "none", "OTEL_PYTHON_TORCHDIST_ANNOUNCE": "false"}
    done = subprocess.run(
        [*TORCHRUN, JOB, "killed", "at once"], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert notices(done.stderr) == 0
