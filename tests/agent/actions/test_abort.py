"""What is reported of ranks that cannot be ended."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import subprocess
import sys
from collections.abc import Iterator

from otel_torchdist.agent.actions.requests import abort_ranks
from otel_torchdist.agent.actions.stalled_run import StalledRun

UNASKED_RANK = """
import dataclasses, sys, time
from pathlib import Path
from otel_torchdist.tape.identity import identify, process_start_ticks
from otel_torchdist.tape.writer import TapeWriter

identity = identify(int(sys.argv[2]), 0, 2, 64)
if sys.argv[3] == "elsewhere":
    identity = dataclasses.replace(identity, pid_namespace=identity.pid_namespace + 1)
elif sys.argv[3] != "here":
    pid = int(sys.argv[3])
    identity = dataclasses.replace(identity, pid=pid, pid_start_ticks=process_start_ticks(pid))
tape = TapeWriter(Path(sys.argv[1]), identity)
print(identity.nonce, flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def ranks_of(stall: StalledRun, *places: str) -> Iterator[tuple[StalledRun, list[subprocess.Popen[str]]]]:
    """Ranks that are asked to end and do not respond, and the stall on their run."""
    command = [sys.executable, "-c", UNASKED_RANK, str(stall.directory)]
    ranks = [
        subprocess.Popen([*command, str(rank), place], stdout=subprocess.PIPE, text=True)
        for rank, place in enumerate(places)
    ]
    try:
        nonces = frozenset(int(rank.stdout.readline()) for rank in ranks if rank.stdout is not None)
        yield dataclasses.replace(stall, nonces=nonces), ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def test_abort_reports_ranks_that_it_could_not_end(stall: StalledRun) -> None:
    """A rank that does not respond is killed, except in another PID namespace: then no end is claimed."""
    with ranks_of(stall, "here", "elsewhere") as (stalled, ranks):
        text = abort_ranks(stalled, lambda: True, answer_s=0.2)
        assert ranks[0].wait(10) == -signal.SIGKILL
        assert ranks[1].poll() is None
    assert text.startswith("ended 1 ranks; rank 0 had to be killed; rank 1 did not end and the agent cannot kill it")


def test_only_the_process_that_writes_the_tape_is_killed(stall: StalledRun) -> None:
    """A tape that claims the pid of another process of the same user, with the right start time, kills nothing."""
    with (
        subprocess.Popen(["sleep", "60"]) as bystander,
        ranks_of(stall, "here", str(bystander.pid)) as (stalled, ranks),
    ):
        text = abort_ranks(stalled, lambda: True, answer_s=0.2)
        assert ranks[0].wait(10) == -signal.SIGKILL
        assert (ranks[1].poll(), bystander.poll()) == (None, None)
        bystander.kill()
    assert text.startswith("ended 1 ranks; rank 0 had to be killed; rank 1 did not end and the agent cannot kill it")
