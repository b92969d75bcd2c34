"""A job that ends in its first moment, before its ranks know the id of their run."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.config import Config
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.node.job.runs.runs import index_of
from otel_torchdist.runs.diagnosis.diagnosis import diagnose_run
from tests.support.commands.running import SCRIPT
from tests.support.launch.quiet import QUIET
from tests.support.launch.warm_python import WarmPython
from tests.support.tapes.directories import memory_directory

WORKER = Path(__file__).parent / "workers" / "short_life.py"
RANKS = 3


@pytest.fixture(scope="module")
def tapes(warm_python: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The base directory of such a job, which no agent has seen: rank 1 is killed, and the others lose it."""
    with memory_directory() as base:
        folder = tmp_path_factory.mktemp("short")
        common = {
            **QUIET,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",  # names the job; nothing listens there, because the store is a file
            "OTEL_PYTHON_TORCHDIST_READER": "none",
            "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(base),
            "STORE": f"file://{folder}/store",
            "WORLD_SIZE": str(RANKS),
        }
        environs = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(RANKS)]
        codes = [done.code for done in warm_python.run(WORKER, environs, folder, [str(folder)])]
        assert codes == [1, -signal.SIGKILL, 1]
        yield base


def test_rank_that_dies_as_soon_as_it_has_joined(tapes: Path) -> None:
    """It is listed with the others, as one run, and the verdict names it."""
    with contextlib.closing(index_of(tapes.glob("job-*"))) as index:
        [run] = index.runs
        assert run.ranks == tuple(range(RANKS))
        verdict = diagnose_run(run, StallRules.from_config(Config.from_environment({}), 1.0)).post_mortem.verdict
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.DEAD, (1,))


@pytest.mark.thorough
def test_agent_that_comes_too_late(tapes: Path) -> None:
    """Where all have ended before there is an agent, it still reports who died first; the next one does not again."""
    [directory] = tapes.glob("job-*")
    time.sleep(3)  # so that nothing looks as if it were happening
    command = [str(SCRIPT), "agent", "--run-dir", str(directory), "--keep", "0"]
    environ = {**os.environ, **QUIET, "OTEL_TRACES_EXPORTER": "none"}
    logs = [subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    [stall] = re.findall(r"stall: .*", logs[0])
    assert stall.startswith("stall: rank 1 is dead, and barrier (sequence 1, default_pg) has been blocked for 0.")
    assert [line for line in logs[0].splitlines() if "stall over: barrier (sequence 1, default_pg) failed" in line]
    assert "stall" not in logs[1]
