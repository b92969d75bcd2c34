"""torchrun with `--nnodes 1:2` on two nodes, of which one is lost: the job goes on with a smaller world."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.native.ports import free_port
from tests.launchers.started import EXAMPLES, StartedJob, line_of, program
from tests.support.commands.running import processes_of
from tests.support.receivers.otlp_receiver import GRPC, OtlpReceiver
from tests.support.waiting import until

pytestmark = [pytest.mark.thorough, pytest.mark.rare]
TRAIN = EXAMPLES / "elastic" / "train.py"


@contextlib.contextmanager
def two_nodes(folder: Path, memory: Path, *arguments: str) -> Iterator[tuple[StartedJob, StartedJob]]:
    """A torchrun on each of two nodes, which share the loopback interface and no directory."""
    endpoint = f"127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:
        receiver = stack.enter_context(OtlpReceiver(GRPC))
        jobs: list[StartedJob] = []
        for node in ("a", "b"):
            (memory / node).mkdir(mode=0o700)
            rendezvous = f"is_host={int(node == 'a')},last_call_timeout=15"
            options = ("--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-id", "job7")
            where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-conf", rendezvous)
            command = (program("torchrun"), *options, *where, "--local-addr", "127.0.0.1", TRAIN, *arguments)
            jobs.append(StartedJob(command, memory / node, receiver.endpoint, receiver.protocol, {}, folder))
            stack.callback(jobs[-1].close)
        yield jobs[0], jobs[1]


def lose(node: StartedJob) -> None:
    """Kill all processes of a node at once, torchrun, rank and agent."""
    for pid in processes_of(node.base):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_lost_node(tmp_path: Path, memory: Path) -> None:
    """The next attempt is a run of its own in the same job, and nothing is said on the lost one once it runs."""
    with two_nodes(tmp_path, memory, "--steps", "25", "--step-s", "0.5") as (kept, lost):
        for node in (kept, lost):
            node.wait_for(r"rank \d of 2 has ended step 5")
        lose(lost)
        kept.wait_for(r"rank 0 of 1 begins \(restarts: 1\)")
        said_before = len(kept.notices)
        assert kept.end() == 0, kept.output
        assert "rank 0 of 1 has finished" in kept.output
        assert len(kept.notices) == said_before, kept.output
        assert not [notice for notice in kept.notices if notice.startswith("rank 0")], "it is the node that was kept"

        runs = [line.split() for line in kept.diagnose("--list").splitlines() if " job-" in line]
        assert [(run[3], run[5]) for run in runs] == [("finished", "1"), ("failed", "2")], runs
        assert len({run[-1] for run in runs}) == 1, "one directory, as one job"
        ended = kept.diagnose(runs[1][0])
        assert "undecided  rank 1 has no tape on this node, and ranks here may have ended because of it" in ended
        assert "no verdict" in kept.diagnose(), "the newest run is chosen"


def test_hang(tmp_path: Path, memory: Path) -> None:
    """The late rank is named in the log of one node, once for the job."""
    with two_nodes(tmp_path, memory, "--late-rank", "1", "--late-s", "20") as nodes:
        notice = until(lambda: [*nodes[0].notices, *nodes[1].notices], 150, lambda: nodes[0].output + nodes[1].output)
        assert notice[0].startswith("rank 1 has not entered all_reduce (")
        assert line_of(TRAIN, "time.sleep(late_s)") in notice[0]
        assert [node.end() for node in nodes] == [0, 0]
        assert len([*nodes[0].notices, *nodes[1].notices]) == 1
