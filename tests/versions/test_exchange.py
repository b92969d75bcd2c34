"""Two nodes of one job whose agents are of two releases: real gloo ranks, each of which starts its own agent.

Each node is a base directory of its own. Both are on loopback, so both have the same host name.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.native.ports import free_port
from tests.support.commands.running import kill_processes_of
from tests.support.launch.quiet import QUIET
from tests.support.tapes.directories import memory_directory
from tests.support.waiting import until
from tests.versions.jobs import agents_settings
from tests.versions.releases import Release

pytestmark = [pytest.mark.thorough, pytest.mark.rare]
WORKER = Path(__file__).parent / "workers" / "late.py"
START_S = 120.0
END_S = 60.0


@dataclass(frozen=True)
class Node:
    """A node with one rank.

    Attributes:
        release: The release of its rank, and so of its agent.
        base: Its base directory.
    """

    release: Release
    base: Path

    @property
    def log(self) -> str:
        """The log of its agent."""
        return "".join(path.read_text() for path in self.base.glob("job-*/agent.log"))

    def diagnosis(self) -> str:
        """What `diagnose` of its release says about its run."""
        return self.release.ask("diagnose", OTEL_PYTHON_TORCHDIST_TAPE_DIR=str(self.base)).stdout


@contextlib.contextmanager
def hanging_job(nodes: list[Node], gate: Path) -> Iterator[None]:
    """A job with a rank on each node, the second of which is late. Both end with the block, without an error."""
    port = str(free_port())
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank, node in enumerate(nodes):
            place = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            settings = {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "GLOO_SOCKET_IFNAME": "lo",
                "OTEL_PYTHON_TORCHDIST_READER": "agent",
                "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "8000",
            }
            environ = node.release.environment(**{**QUIET, **agents_settings(node.base), **place, **settings})
            ranks.append(subprocess.Popen([sys.executable, WORKER, gate], env=environ, cwd="/"))
        yield
        gate.touch()
        assert [process.wait(END_S) for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
            process.wait(END_S)
        for node in nodes:
            kill_processes_of(node.base)


@pytest.mark.parametrize("is_first_other", [False, True], ids=["this judges", "the other judges"])
def test_agents_of_two_releases(other: Release, this: Release, is_first_other: bool, tmp_path: Path) -> None:
    """With the same protocol both see all ranks. With another one each names the other's version, once, and the remedy.

    `diagnose` on the first node says so, too, and the training goes on to its end.
    """
    releases = [other, this] if is_first_other else [this, other]
    with contextlib.ExitStack() as stack:
        first, second = (Node(release, stack.enter_context(memory_directory())) for release in releases)
        stack.enter_context(hanging_job([first, second], tmp_path / "gate"))
        host = socket.gethostname()
        if this.formats["EXCHANGE"] == other.formats["EXCHANGE"]:
            until(lambda: "rank 1 has not entered all_reduce" in first.diagnosis(), START_S)
            met = f"the agent on {host} is of otel-torchdist {second.release.version}, this one of "
            assert f"{met}{first.release.version}: they exchange data" in first.log
            assert "exchange no data" not in first.log + second.log
            return
        until(lambda: "rank 1 is unreachable" in first.diagnosis(), START_S)
        until(lambda: "exchange no data" in second.log, START_S)
        for own, their in ((first, second), (second, first)):
            versions = (
                f"the agent on {host} is of otel-torchdist {their.release.version} "
                f"(exchange protocol {their.release.formats['EXCHANGE']}), this one of {own.release.version}"
            )
            [line] = [line for line in own.log.splitlines() if "exchange no data" in line]
            assert versions in line
            assert line.endswith("are upgraded to one version")
            assert "does not answer" not in own.log
        diagnosis = first.diagnosis()
        assert f"(the agent on {host} is of another version, {second.release.version})" in diagnosis
        assert "upgrade the agents of this job to one version" in diagnosis
