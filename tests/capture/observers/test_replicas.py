"""Parameters of replicas: those that have parted are found, with both kernels, and others are not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.stall.findings.values import Diverged
from otel_torchdist.stall.findings.wording import describe_values
from tests.capture.observers.values.test_numerics import findings, world_of
from tests.support.launch.jobs import Jobs
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import KERNELS, environ_of

WORKERS = Path(__file__).parent / "workers"
RANKS = 3
NO_RANK = -1
STEPS = 9
"""Optimizer steps of the first model: parameters are compared when the first optimizer steps that finds a new step."""


@pytest.fixture(scope="module", params=KERNELS)
def jobs(request: pytest.FixtureRequest, warm_python: WarmPython) -> Iterator[Jobs]:
    """Runs trainings, recorded with each kernel."""
    jobs = Jobs(warm_python, WORKERS, environ=environ_of(request.param))
    yield jobs
    jobs.clean_up()


@pytest.mark.parametrize("kind", ["adam", "two_models"])
def test_flipped_bit(jobs: Jobs, kind: str) -> None:
    """One bit of one parameter is enough, in any of the models, and the rank is named once.

    The bit is flipped after step 3. The second optimizer of two already sees the step that the first has begun.
    """
    [found] = findings(jobs.run("replicas", RANKS, kind, "1"))
    assert isinstance(found, Diverged)
    step = 5 if kind == "two_models" else 4
    assert (found.is_of_parameters, found.ranks, found.others, found.step) == (True, (1,), (0, 2), step)
    assert describe_values(found) == (
        f"rank 1 has other parameters of default_pg than ranks 0,2 in step {step}, since then or earlier:"
        " replicas must be equal; it is 2.weight, the only one of 4 that differs"
    )


def test_no_majority(jobs: Jobs) -> None:
    """Of two replicas it cannot be known which is right."""
    [found] = findings(jobs.run("replicas", 2, "adam", "1"))
    assert isinstance(found, Diverged)
    assert (found.ranks, found.others) == ((0, 1), ())


@pytest.mark.parametrize("kind", ["adam", "two_models", "zero"])
def test_healthy(jobs: Jobs, kind: str) -> None:
    """Nothing is found where replicas are equal at the start of each step, as with ZeRO, which distributes after it."""
    job = jobs.run("replicas", RANKS, kind, str(NO_RANK))
    assert findings(job) == []
    count = 2 * STEPS if kind == "two_models" else STEPS - 1
    for view in world_of(job).ranks.values():
        compared = [one.operation_id.sequence for one in view.values.outputs]
        assert len(compared) == len({*compared}) == count
