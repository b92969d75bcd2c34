"""Launches by hand that do not come about: plain processes, without a launcher, as a script in a shell starts them.

What is said while they wait is what `diagnose` says while they do, and when their own timeout has ended them.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from deploy.native.ports import free_port
from otel_torchdist.environment_variables import (
    OTEL_PYTHON_TORCHDIST_ENABLED,
    OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT,
    OTEL_PYTHON_TORCHDIST_TAPE_DIR,
    OTEL_PYTHON_TORCHDIST_TAPE_ON_DISK,
)
from tests.support.commands.running import SCRIPT, kill_processes_of
from tests.support.waiting import until

TRAIN = Path(__file__).parent / "workers" / "train.py"
PATIENCE_S = 150.0


class Launch:
    """Processes that share a standard error, as those of one script do.

    Attributes:
        port: A port that nobody has.
        other_port: Another one.
    """

    def __init__(self, folder: Path) -> None:
        self.base = folder / "tapes"
        self._folder = folder
        self._stderr = folder / "stderr"
        self._stack = ExitStack()
        self._ranks: list[subprocess.Popen[bytes]] = []
        self.port, self.other_port = free_port(), free_port()

    def start(
        self,
        rank: int,
        size: int,
        port: int = 0,
        recorded: bool = True,
        environ: Mapping[str, str] | None = None,
        group: str = "",
    ) -> None:
        """Start a rank, which waits for `release` if it is in a group: on a loaded node some start seconds later."""
        added = {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port or self.port),
            "LAUNCH_TIMEOUT_S": "7",
            OTEL_PYTHON_TORCHDIST_ENABLED: str(recorded).lower(),
            OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT: "3000",
            OTEL_PYTHON_TORCHDIST_TAPE_DIR: str(self.base),
            OTEL_PYTHON_TORCHDIST_TAPE_ON_DISK: "true",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
        } | ({"LAUNCH_START": str(self._folder / group)} if group else {})
        with self._stderr.open("ab") as stderr:
            process = subprocess.Popen(
                [sys.executable, TRAIN],
                env={**os.environ, **added, **(environ or {})},
                stdin=subprocess.PIPE,
                stderr=stderr,
            )
        self._ranks.append(self._stack.enter_context(process))

    def release(self, group: str, count: int) -> None:
        """Let this number of ranks create their group, once all of them are there."""
        until(lambda: len([*self._folder.glob(f"{group}.*")]) == count, PATIENCE_S)
        (self._folder / group).touch()

    def said(self) -> list[str]:
        """The sentences on its standard error, once there is one; each once."""
        return until(self._said, PATIENCE_S, lambda: self._stderr.read_text(errors="replace"))

    def _said(self) -> list[str]:
        lines = self._stderr.read_text(errors="replace").splitlines()
        found = [line.removeprefix("otel_torchdist: ") for line in lines if line.startswith("otel_torchdist: ")]
        return list(dict.fromkeys(line for line in found if not line.startswith("details:")))

    def wait_for_tapes(self, count: int) -> None:
        """Wait until this number of ranks have come."""
        until(lambda: len([*self.base.glob("job-*/*.tape")]) >= count, PATIENCE_S)

    def wait(self) -> None:
        """Wait until all ranks have ended."""
        for rank in self._ranks:
            rank.communicate(timeout=PATIENCE_S)

    def diagnosed(self, directory: Path | None = None) -> str:
        """The verdict of `diagnose`."""
        options = ["--run-dir", str(directory)] if directory is not None else []
        environ = {
            **os.environ,
            OTEL_PYTHON_TORCHDIST_TAPE_DIR: str(self.base),
            OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT: "3000",
            "COLUMNS": "1000",
        }
        done = subprocess.run([SCRIPT, "diagnose", *options], env=environ, capture_output=True, text=True, timeout=60)
        found = [line.removeprefix("verdict  ") for line in done.stdout.splitlines() if line.startswith("verdict ")]
        assert len(found) == 1, done.stdout + done.stderr
        return found[0]

    def close(self) -> None:
        """End what still runs."""
        for rank in self._ranks:
            if rank.poll() is None:
                rank.send_signal(signal.SIGKILL)
            rank.communicate()
        self._stack.close()
        kill_processes_of(self.base)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """A launch that is ended after the test."""
    (tmp_path / "tapes").mkdir()
    started = Launch(tmp_path)
    yield started
    started.close()


@pytest.mark.thorough
def test_rank_with_another_port(launch: Launch) -> None:
    """Who waits where is said by both sides alike, with no word on ranks that are there, and also afterwards."""
    for rank, port in enumerate((launch.port, launch.port, launch.other_port)):
        launch.start(rank, 3, port, group="all")
    launch.release("all", 3)
    expected = (
        f"rank 2 looks for the store at 127.0.0.1:{launch.other_port}, but ranks 0-1 wait at 127.0.0.1:{launch.port}: "
    )
    assert launch.said()[0].startswith(expected)
    assert launch.diagnosed().startswith(expected)
    launch.wait()
    assert all(sentence.startswith(expected) for sentence in launch.said())
    directories = [*launch.base.glob("job-*")]
    assert len(directories) == 2
    for directory in directories:
        assert launch.diagnosed(directory).startswith(expected)


@pytest.mark.thorough
def test_two_jobs_that_lack_a_rank(launch: Launch) -> None:
    """Two jobs of one program that both wait for their rank 1 have nothing to do with each other."""
    launch.start(0, 2)
    launch.start(0, 2, launch.other_port)
    launch.wait()
    places = [f"127.0.0.1:{port}, where 1 of 2 ranks has waited" for port in (launch.port, launch.other_port)]
    said = launch.said()
    assert all(sentence.startswith("rank 1 has not come to ") for sentence in said)
    assert [sum(place in sentence for sentence in said) for place in places] == [1, 1]


@pytest.mark.thorough
def test_world_that_is_too_small(launch: Launch) -> None:
    """The rank that the world has no place for is named, whether it waits or fails, and none of those that train."""
    launch.start(0, 2, environ={"LAUNCH_GATE": "true"})
    launch.start(1, 2)
    launch.wait_for_tapes(2)
    launch.start(2, 2)
    expected = "there is no rank 2 in a world of 2 (WORLD_SIZE): it "
    assert [sentence[: len(expected)] for sentence in launch.said()] == [expected]
    launch.wait()
    assert launch.diagnosed().startswith(expected)


@pytest.mark.thorough
def test_rank_with_another_size(launch: Launch) -> None:
    """Where a rank was given another size than the others, both are said, and no rank is said to be missing."""
    for rank, size in enumerate((3, 3, 4)):
        launch.start(rank, size, group="all")
    launch.release("all", 3)
    launch.wait()
    expected = f"rank 2 has WORLD_SIZE=4 and ranks 0-1 have WORLD_SIZE=3, at 127.0.0.1:{launch.port}: "
    said = launch.said()
    assert [sentence[: len(expected)] for sentence in said] == [expected] * len(said)
    assert launch.diagnosed().startswith(expected)


def test_port_that_is_taken(launch: Launch) -> None:
    """The rank that could not host the store is named, with the address; so it is where it is the only one."""
    with socket.create_server(("127.0.0.1", launch.port)):
        launch.start(0, 2)
        launch.wait()
    expected = f"rank 0 could not host the store: 127.0.0.1:{launch.port} is in use (DistNetworkError)"
    assert launch.diagnosed().startswith(expected)


@pytest.mark.thorough
def test_file_of_an_earlier_launch(launch: Launch, tmp_path: Path) -> None:
    """A file that an earlier launch has left is said to be the cause, and no rank is blamed."""
    environ = {"LAUNCH_FILE": str(tmp_path / "store")}
    for rank in range(3):
        launch.start(rank, 3, recorded=False, environ={**environ, "LAUNCH_CRASHES": "true"})
    launch.wait()
    left = (tmp_path / "store").stat().st_size
    for rank, group in enumerate(("later", "first", "first")):
        launch.start(rank, 3, environ=environ, group=group)
    launch.release("first", 2)
    launch.wait_for_tapes(2)
    until(lambda: _has_come_to_rest(tmp_path / "store", left), PATIENCE_S)  # both have read the old address of rank 0
    launch.release("later", 1)
    file = re.escape(str(tmp_path / "store"))
    said = re.compile(
        rf"(the file {file} leads ranks? [0-2,-]+ to |all 3 ranks have entered ).* left from an earlier launch"
    )
    assert said.match(launch.said()[-1])
    assert said.match(launch.diagnosed())


def _has_come_to_rest(file: Path, before: int) -> bool:
    """Whether a file has become larger than before, and does not grow any more."""
    size = file.stat().st_size
    time.sleep(0.3)
    return before < size == file.stat().st_size
