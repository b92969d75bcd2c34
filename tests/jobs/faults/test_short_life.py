"""A job that ends in its first moment, before its ranks know the id of their run."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

from otel_torchdist.cli.diagnose.diagnosis import diagnose_run
from otel_torchdist.config import Config
from otel_torchdist.job.runs import index_of
from otel_torchdist.verdict.model import VerdictKind
from otel_torchdist.verdict.rules import StallRules
from tests.support.quiet import QUIET
from tests.support.warm_python import WarmPython

WORKER = Path(__file__).parent / "workers" / "short_life.py"
RANKS = 3


def test_rank_that_dies_as_soon_as_it_has_joined(warm_python: WarmPython, memory: Path, tmp_path: Path) -> None:
    """It is listed with the others, as one run, and the verdict names it."""
    common = {
        **QUIET,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",  # names the job; nothing listens there, because the store is a file
        "OTEL_PYTHON_TORCHDIST_READER": "none",
        "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(memory),
        "STORE": f"file://{tmp_path}/store",
        "WORLD_SIZE": str(RANKS),
    }
    environs = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(RANKS)]
    codes = [done.code for done in warm_python.run(WORKER, environs, tmp_path)]
    assert codes == [1, -signal.SIGKILL, 1]
    with contextlib.closing(index_of(memory.glob("job-*"))) as index:
        [run] = index.runs
        assert run.ranks == tuple(range(RANKS))
        verdict = diagnose_run(run, StallRules.from_config(Config.from_environment({}), 1.0)).found.verdict
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.DEAD, (1,))
