"""A torchrun whose rendezvous waits for other nodes: its log says which have come, and the job then runs as ever."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from deploy.native.ports import free_port
from otel_torchdist.environment_variables import (
    OTEL_PYTHON_TORCHDIST_ENABLED,
    OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT,
    OTEL_PYTHON_TORCHDIST_TAPE_DIR,
)
from tests.support.commands.running import kill_processes_of

LAUNCHER = (sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1")
SCRIPT = "import torch.distributed as dist; dist.init_process_group('gloo'); dist.barrier(); print('has run')"


class Nodes:
    """Launchers of one job, each in the place of a node."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._stack = ExitStack()
        self.port = free_port()
        self.launchers: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the launcher of a node."""
        environ = {
            **os.environ,
            OTEL_PYTHON_TORCHDIST_ENABLED: "true",
            OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT: "1000",
            OTEL_PYTHON_TORCHDIST_TAPE_DIR: str(self._base),
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
        }
        launcher = subprocess.Popen(
            [*LAUNCHER, *arguments, "--no-python", sys.executable, "-c", SCRIPT],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.launchers.append(self._stack.enter_context(launcher))
        return launcher

    def close(self) -> None:
        """End what still runs."""
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.send_signal(signal.SIGTERM)
            launcher.communicate(timeout=60)
        self._stack.close()
        kill_processes_of(self._base)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Launchers that are ended after the test."""
    started = Nodes(tmp_path / "tapes")
    yield started
    started.close()


def first_line_of_ours(launcher: subprocess.Popen[str]) -> str:
    """What a launcher says of its rendezvous first."""
    assert launcher.stderr is not None
    return next(line for line in launcher.stderr if line.startswith("otel_torchdist: "))


@pytest.mark.thorough
def test_node_that_is_late(nodes: Nodes) -> None:
    """It is said which nodes have come, of how many, at which endpoint, since when; with the other one the job runs."""
    arguments = ("--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{nodes.port}", "--rdzv-id=job7")
    first = nodes.start(*arguments)
    said = first_line_of_ours(first)
    assert re.fullmatch(
        rf"otel_torchdist: after \d+ s 1 of 2 nodes has joined the rendezvous 'job7' at localhost:{nodes.port}: "
        rf"\S+ \(pid {first.pid}\); 1 is missing\n",
        said,
    )
    nodes.start(*arguments)
    outputs = [launcher.communicate(timeout=120)[0] for launcher in nodes.launchers]
    assert [output.splitlines()[-1] for output in outputs] == ["has run"] * 2  # gloo of torch 2.8 prints lines, too
    assert [launcher.returncode for launcher in nodes.launchers] == [0, 0]


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        pytest.param(
            *("0", "not all of 2 nodes have joined node 0 at {at}, which waits for node 1"),
            marks=pytest.mark.thorough,
        ),
        ("1", "node 1 of 2 has not found node 0 at {at}"),
    ],
)
def test_static_rendezvous(nodes: Nodes, node: str, expected: str) -> None:
    """Without a shared state it is said who waits for whom, and where."""
    launcher = nodes.start("--master-addr=127.0.0.1", f"--master-port={nodes.port}", f"--node-rank={node}")
    said = first_line_of_ours(launcher)
    assert said.endswith(f" s {expected.format(at=f'127.0.0.1:{nodes.port}')}\n")
    launcher.kill()
