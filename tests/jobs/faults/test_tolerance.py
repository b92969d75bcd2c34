"""Healthy jobs that wait for longer than the threshold: nothing is reported about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from otel_torchdist.telemetry import semconv
from tests.jobs.faults.faulty_job import THRESHOLD_S, FaultyJob, faulty_job
from tests.jobs.faults.outcome import Outcome, observe_health
from tests.support.launch.side_by_side import params_of, selected, side_by_side
from tests.support.launch.warm_python import WarmPython

WORKER = Path(__file__).parent / "workers" / "patient.py"
LONG_S = 2 * THRESHOLD_S
PATIENT = {"LONG_S": str(LONG_S)}


@dataclass(frozen=True)
class Patience:
    """A wait that is expected, or to be ignored.

    Attributes:
        title: Its name in the worker.
        settings: Additions to the environment.
    """

    title: str
    settings: Mapping[str, str] = field(default_factory=dict[str, str])


ANNOUNCED = Patience("evaluation")
OTHERS = (
    Patience("download", {"OTEL_PYTHON_TORCHDIST_STALL_IGNORE": "patient.py:download"}),
    Patience("requests"),
    Patience("debugger"),
)


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, warm_python: WarmPython) -> Iterator[Mapping[str, Future[Outcome]]]:
    """The reports of each wait, which takes twice the threshold."""

    def run(wait: Patience) -> Outcome:
        with faulty_job(warm_python, wait.title, worker=WORKER, environ={**PATIENT, **wait.settings}) as job:
            return observe_health(job)

    with side_by_side(run, selected(request, "wait")) as outcomes:
        yield outcomes


@pytest.mark.parametrize("wait", params_of([ANNOUNCED], OTHERS))
def test_nothing_is_reported(wait: Patience, outcomes: Mapping[str, Future[Outcome]]) -> None:
    """A wait of twice the threshold that is expected or to be ignored is not reported, and the job ends well."""
    assert outcomes[wait.title].result().problems == ()


@pytest.mark.thorough
def test_repeated_checkpoint_is_reported_once(start: Callable[..., FaultyJob]) -> None:
    """A routine wait is reported only the first time, when it is not known to be routine."""
    job = start("checkpoint", worker=WORKER, environ={"LONG_S": str(LONG_S + THRESHOLD_S)})  # the verdict has its time
    assert [done.code for done in job.join()] == [0, 0, 0]
    job.receiver.wait_for(lambda spans: any(semconv.STALL_RESOLVED in span.attributes for span in spans))
    assert len({root.trace_id for root in job.roots()}) == 1
    assert {root.attributes[semconv.VERDICT_RANKS] for root in job.roots()} == {"0"}
    assert len({root.attributes[semconv.SEQUENCE] for root in job.roots()}) == 1
