"""Every fault of the matrix on real processes: the right verdict, ranks and line, in time, and only once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.jobs.faults.faulty_job import WORKER, FaultyJob
from tests.jobs.faults.outcome import observe
from tests.jobs.faults.rows import MESSAGES, ROWS, THREADS, Row


@pytest.mark.parametrize("row", ROWS, ids=[row.title for row in ROWS])
def test_fault(row: Row, start: Callable[..., FaultyJob]) -> None:
    """The first report of a fault to the Collector names its kind, its ranks and their line, in time."""
    outcome = observe(row, start(row.name, worker=row.worker, ranks=row.size, environ=row.environ, of_rank=row.of_rank))
    assert outcome.problems == (), outcome.sentence


@pytest.mark.parametrize(("worker", "ranks"), [(WORKER, 3), (WORKER, 4), (THREADS, 3), (MESSAGES, 3)])
def test_healthy_run_of_the_same_script(start: Callable[..., FaultyJob], worker: Path, ranks: int) -> None:
    """Each of these steps as it should have been written: the job ends well, and nothing is reported."""
    job = start("all", "healthy", worker=worker, ranks=ranks)
    assert [done.code for done in job.join()] == [0] * ranks
    spans = job.receiver.wait_for(lambda spans: any(span.name == "init_process_group" for span in spans))
    assert [span.name for span in spans if "stall" in span.name or "in progress" in span.name] == []
