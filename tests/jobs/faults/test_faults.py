"""Every fault of the matrix on real processes: the right verdict, ranks and line, in time, and only once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.jobs.faults.faulty_job import WORKER, FaultyJob
from tests.jobs.faults.outcome import observe
from tests.jobs.faults.rows import MESSAGES, THREADS, VARIANTS, VERDICTS, Row
from tests.jobs.faults.tiers import params_of


@pytest.mark.parametrize("row", params_of(VERDICTS, VARIANTS))
def test_fault(row: Row, start: Callable[..., FaultyJob]) -> None:
    """The first report of a fault to the Collector names its kind, its ranks and their line, in time."""
    outcome = observe(row, start(row.name, worker=row.worker, ranks=row.size, environ=row.environ, of_rank=row.of_rank))
    assert outcome.problems == (), outcome.sentence


@pytest.mark.parametrize(
    ("worker", "ranks"),
    [
        (WORKER, 3),
        pytest.param(WORKER, 4, marks=pytest.mark.thorough),
        pytest.param(THREADS, 3, marks=pytest.mark.thorough),
        pytest.param(MESSAGES, 3, marks=pytest.mark.thorough),
    ],
)
def test_healthy_run_of_the_same_script(start: Callable[..., FaultyJob], worker: Path, ranks: int) -> None:
    """Each of these steps as it should have been written: the job ends well, and nothing is reported."""
    job = start("all", "healthy", worker=worker, ranks=ranks)
    assert [done.code for done in job.join()] == [0] * ranks
    spans = job.receiver.wait_for(lambda spans: any(span.name == "init_process_group" for span in spans))
    assert [span.name for span in spans if "stall" in span.name or "in progress" in span.name] == []
