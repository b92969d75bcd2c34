"""A launcher whose ranks have failed stays until the notice is written, whatever its standard error is."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from deploy.native.ports import free_port
from tests.jobs.torchrun.recording import COMMAND, TWO_RANKS, WORKERS, notices, switched_on
from tests.support.commands.running import kill_processes_of
from tests.support.launch.side_by_side import params_of, selected, side_by_side

JOB: Final = WORKERS / "crashes_at_once.py"
TORCHRUN: Final = (sys.executable, "-m", "torch.distributed.run", *TWO_RANKS)
SENTENCE: Final = re.compile(
    r"^otel_torchdist: rank 1 (?:was killed by SIGKILL|is dead|ended with ValueError)", re.MULTILINE
)
ENDS_S: Final = 150.0


@dataclass(frozen=True)
class Launch:
    """A job whose rank 1 ends by itself, with a pipe for its standard error.

    Attributes:
        title: Its name.
        how: How rank 1 ends, see the worker.
        when: When it does.
        settings: Additions to the environment.
        said: Beginning of the sentence about it, as a pattern.
        lines: How many lines there are of ours.
    """

    title: str
    how: str
    when: str
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    said: str = SENTENCE.pattern
    lines: int = 2


@dataclass(frozen=True)
class Ended:
    """The outcome of a launch."""

    code: int
    err: str
    has_agent: bool


_NO_AGENT: Final = {"OTEL_PYTHON_TORCHDIST_READER": "none"}
LAUNCHES: Final = (Launch("killed before an agent has come", "killed", "at once"),)
MORE_LAUNCHES: Final = (
    Launch("raises before an agent has come", "raises", "at once"),
    # A program that reads the output to its end gets that end while the agent stays.
    Launch("killed under an agent that lingers", "killed", "watched", {"OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "600000"}),
    Launch("killed without an agent", "killed", "at once", _NO_AGENT),
    Launch("killed with a reader in each rank", "killed", "at once", {"OTEL_PYTHON_TORCHDIST_READER": "thread"}),
    Launch(
        *("exits quietly before an agent has come", "exits", "at once"),
        said=r"^otel_torchdist: rank 1 has exited with code 0 before all_reduce",
    ),
    Launch(
        *("switched off", "killed", "at once", _NO_AGENT | {"OTEL_PYTHON_TORCHDIST_ANNOUNCE": "false"}),
        said="^",
        lines=0,
    ),
)


@pytest.fixture(scope="module")
def ended(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Future[Ended]]]:
    """The outcome of each launch."""

    def run(launch: Launch) -> Ended:
        tapes = tmp_path_factory.mktemp("launch") / "tapes"
        environ = {**os.environ, **switched_on(tapes), **launch.settings}
        try:
            done = subprocess.run(
                [*TORCHRUN, JOB, launch.how, launch.when],
                env=environ,
                capture_output=True,
                text=True,
                check=False,
                timeout=ENDS_S,
            )
        finally:
            kill_processes_of(tapes)
        return Ended(done.returncode, done.stderr, bool([*tapes.glob("job-*/agent.log")]))

    # A launcher waits for three seconds at most for an agent that starts.
    with side_by_side(run, selected(request, "launch"), at_once=2) as ended:
        yield ended


@pytest.mark.parametrize("launch", params_of(LAUNCHES, MORE_LAUNCHES))
def test_pipe(launch: Launch, ended: Mapping[str, Future[Ended]]) -> None:
    """A pipe gets the notice beside torchrun's traceback, from the agent or the launcher, which starts no agent."""
    done = ended[launch.title].result()
    assert done.code == 1
    assert re.search(launch.said, done.err, re.MULTILINE), done.err
    assert notices(done.err) == launch.lines
    assert bool(COMMAND.search(done.err)) is bool(launch.lines)
    assert "ChildFailedError" in done.err
    assert not (done.has_agent and "OTEL_PYTHON_TORCHDIST_READER" in launch.settings)


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a job that records; agents that linger are ended."""
    yield {**os.environ, **switched_on(tmp_path / "tapes")}
    kill_processes_of(tmp_path / "tapes")


@pytest.mark.thorough
def test_socket(environ: dict[str, str]) -> None:
    """A socket, as services of systemd have it, cannot be opened again by the agent: the launcher writes for it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [*TORCHRUN, JOB, "raises", "watched"]
        job = subprocess.Popen(command, env=environ, stderr=theirs.fileno())
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
    # From Python 3.13 on the exception that torch has turned into `sys.exit(1)` is gone when a rank ends.
    how = "ended with ValueError" if sys.version_info < (3, 13) else "exited with code 1"
    assert re.search(f"^otel_torchdist: rank 1 {how}", done.stderr, re.MULTILINE), done.stderr
    assert notices(done.stderr) == 2
    assert "ProcessRaisedException" in done.stderr
