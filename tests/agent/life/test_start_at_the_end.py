"""Programs that had no agent while they ran."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_torchdist.job.directory import CHECKPOINT_NAME
from tests.agent.conftest import JOB
from tests.agent.own_agent import OwnAgent
from tests.agent.training import WORKERS, environment
from tests.support.launch.forked_ranks import ORDINARY_END
from tests.support.launch.warm_python import WarmPython
from tests.support.ranks.job_ranks import Ranks
from tests.support.receivers.otlp_receiver import OtlpReceiver
from tests.support.waiting import until


def test_it_gets_one_when_it_ends(warm_python: WarmPython, base: Path, receiver: OtlpReceiver, tmp_path: Path) -> None:
    """No agent starts beside its `os.wait()`; one does at its end, silently, though Python starts no threads then."""
    environ = {**environment(base, receiver), ORDINARY_END: "true"}
    [done] = warm_python.run(WORKERS / "awaits_children.py", [environ], tmp_path, [str(tmp_path / "store")])
    word, pid = done.out.split()[-2:]
    os.kill(int(pid), signal.SIGKILL)
    assert (done.code, word, done.err) == (0, "trained", "")
    until(lambda: [span.name for span in receiver.spans()].count("all_reduce") == 3)


@pytest.mark.parametrize(
    ("reader", "operations"), [("none", [1, 2]), ("thread", [2]), ("an agent", [2])], ids=["none", "thread", "agent"]
)
def test_agent_of_the_next_run(begin: Callable[..., Ranks], base: Path, reader: str, operations: list[int]) -> None:
    """It exports the run before its own if nothing has: neither that run's ranks, nor maybe an agent before it."""
    first = begin(1, run=1 << 112)
    first.meet(1)
    if reader == "thread":
        first.send(0, "exports")
    elif reader == "an agent":
        (base / JOB / CHECKPOINT_NAME).write_bytes(b"damaged")
    first.exit()
    second = begin(1, run=2 << 112)
    second.meet(2)
    with contextlib.closing(OwnAgent(base / JOB)) as own:
        own.turn_until(lambda: own.shown("torchdist_up"))
        second.exit()
    assert own.exported("all_reduce") == [(0, sequence) for sequence in operations]
