"""Consecutive jobs, as the service of a cluster sees them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.commands.running import processes_of
from tests.support.launch.quiet import QUIET
from tests.support.launch.warm_python import WarmPython
from tests.support.waiting import until

JOBS = 8
KEPT = 3
WORKER = Path(__file__).parents[1] / "workers" / "short.py"


@pytest.mark.thorough
def test_many_jobs_leave_nothing(warm_python: WarmPython, memory: Path) -> None:
    """Eight jobs, each with its own agent, leave no process, no port and no more files than should be kept."""
    tapes, temporary = memory / "tapes", memory / "tmp"
    temporary.mkdir()
    for job in range(JOBS):
        environ = {
            **QUIET,
            "OTEL_PYTHON_TORCHDIST_READER": "agent",
            "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "0",
            "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(tapes),
            "OTEL_PYTHON_TORCHDIST_KEEP_RUNS": str(KEPT),
            "TMPDIR": str(temporary),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(job),  # distinguishes the jobs; the store is a file
        }
        [done] = warm_python.run(WORKER, [environ], memory, [str(memory / f"store-{job}")], 60.0)
        assert (done.code, done.err) == (0, "")
    until(lambda: not processes_of(tapes), 40)
    assert [os.listdir(path) for path in tapes.glob("job-*") if not (path / "agent.checkpoint").exists()] == []
    assert os.listdir(tapes / "prometheus") == os.listdir(temporary) == []
    jobs = [path for path in tapes.iterdir() if path.name != "prometheus"]
    assert len(jobs) <= KEPT + 1  # the last agent was still in its own directory
    logs = [(path / "agent.log").read_text() for path in jobs]
    assert all("all ranks have ended; everything they recorded was exported" in log for log in logs), logs
    assert not [line for log in logs for line in log.splitlines() if " WARNING " in line or " ERROR " in line]
