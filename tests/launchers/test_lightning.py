"""Lightning's own launchers: rank 0 starts the others, or multiprocessing starts all."""

from __future__ import annotations

import pytest

from tests.launchers.conftest import Start
from tests.launchers.started import (
    EXAMPLES,
    PYTHON,
    assert_failure_is_shown,
    assert_hang_is_shown,
    assert_job_goes_on,
    line_of,
    needs,
)

pytestmark = [pytest.mark.thorough, pytest.mark.rare]
TRAIN = EXAMPLES / "lightning" / "train.py"


@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn", "ddp_notebook"])
def test_hang(start: Start, strategy: str) -> None:
    """The late rank is named with its line, whichever way the ranks were started, and no line is Python's own."""
    needs("lightning")
    job = start(PYTHON, TRAIN, "--strategy", strategy, "--late-rank", "1", "--late-s", "20")
    assert_hang_is_shown(job, line_of(TRAIN, "time.sleep(self.late_s)"))
    assert "<string>" not in job.notices[0]
    assert_job_goes_on(job)
    assert "trained for 6 steps on 2 ranks" in job.output


@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_failure(start: Start, strategy: str) -> None:
    """The rank that fails first is named, as is its line."""
    needs("lightning")
    job = start(PYTHON, TRAIN, "--strategy", strategy, "--failing-rank", "1")
    assert_failure_is_shown(job, line_of(TRAIN, "raise ValueError"), launcher_waits=strategy != "ddp")
