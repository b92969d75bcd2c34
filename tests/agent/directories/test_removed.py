"""A job directory that is removed while the job runs, as systemd-logind does at logout."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.conftest import JOB
from tests.support.commands.running import Running
from tests.support.ranks.job_ranks import Ranks


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--run-dir", JOB), id="job"),
        pytest.param(("--watch", "--keep", "1"), marks=pytest.mark.thorough, id="node"),
    ],
)
def test_stall_is_reported(
    begin: Callable[..., Ranks], start: Callable[..., Running], base: Path, options: tuple[str, ...]
) -> None:
    """One warning names what may have removed it; a stall that begins later is still reported."""
    ranks = begin(2)
    ranks.meet(1)
    arguments = [base / JOB if option == JOB else option for option in options]
    running = start("agent", *arguments, OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT="500", OTEL_TRACES_EXPORTER="none")
    running.wait_for("found ranks 0-1")
    shutil.rmtree(base / JOB)
    running.wait_for("RemoveIPC=yes")
    if "--watch" in options:
        time.sleep(2.5)  # longer than the service keeps a job that is gone
    ranks.send(0, "enter 2")
    running.wait_for(r"stall: rank 1 has not entered all_reduce \(sequence 2,")
    assert running.out.count("RemoveIPC") == 1
    assert "Traceback" not in running.out + running.err
    ranks.close()
    running.wait_for("stopped reading" if "--watch" in options else "(is|are) dead|(has|have) ended", 10)
