"""Every fault of the matrix on real processes: the right verdict, ranks and line, in time, and only once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future

import pytest

from tests.jobs.faults.faulty_job import faulty_job
from tests.jobs.faults.outcome import Outcome, observe, observe_health
from tests.jobs.faults.rows import MESSAGES, THREADS, VARIANTS, VERDICTS, Row, natively
from tests.support.launch.side_by_side import params_of, selected, side_by_side
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import environ_of

HEALTHY = Row("all", "all as they should be", "", "", "")
OTHERS_HEALTHY = (
    Row("all", "of four ranks", "", "", "", size=4),
    Row("all", "with threads", "", "", "", worker=THREADS),
    Row("all", "with messages", "", "", "", worker=MESSAGES),
)


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, warm_python: WarmPython) -> Iterator[Mapping[str, Future[Outcome]]]:
    """The reports of each fault, and of jobs without a fault."""

    def run(row: Row) -> Outcome:
        arguments = [row.name] if row.verdict else [row.name, "healthy"]
        environ = {**row.environ, **environ_of(row.kernel)}
        others = {"worker": row.worker, "ranks": row.size, "environ": environ, "of_rank": row.of_rank}
        with faulty_job(warm_python, *arguments, **others) as job:
            return observe(row, job) if row.verdict else observe_health(job)

    with side_by_side(run, selected(request, "row")) as outcomes:
        yield outcomes


@pytest.mark.parametrize("row", params_of([*VERDICTS, *natively(VERDICTS[:1])], [*VARIANTS, *natively(VERDICTS[1:])]))
def test_fault(row: Row, outcomes: Mapping[str, Future[Outcome]]) -> None:
    """The first report of a fault to the Collector names its kind, its ranks and their line, in time."""
    outcome = outcomes[row.title].result()
    assert outcome.problems == (), outcome.sentence


@pytest.mark.parametrize("row", params_of([HEALTHY], OTHERS_HEALTHY))
def test_healthy_run_of_the_same_script(row: Row, outcomes: Mapping[str, Future[Outcome]]) -> None:
    """Each of these steps as it should have been written: the job ends well, and nothing is reported."""
    assert outcomes[row.title].result().problems == ()
