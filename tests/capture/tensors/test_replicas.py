"""Divergence of replicated parameters, of DDP models and DTensors, is found, without false alarms."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from otel_torchdist.judge.stall.findings.diverged import Diverged
from tests.support.launch.jobs import Job, Jobs
from tests.support.native.both_kernels import NATIVE_LATER
from tests.support.worlds.finished import findings_of, world_of_job

pytestmark = NATIVE_LATER
BAD_RANK, NO_RANK = 1, -1
TENSORS = "replicated_tensors"
STEPS = 9
"""Optimizer steps of each model of `replicas`."""
EVERY, STEPS_OF_TENSORS = 2, 7
"""Parameters of `replicated_tensors` are compared before each second step."""


@dataclass(frozen=True)
class Parted:
    """A training in which a bit of one parameter of rank 1 is flipped after step 3, or a step is left out.

    Attributes:
        ranks: Those that are named.
        others: Those from which they differ; none where it cannot be known which is right.
        step: The step in which that is found.
        said: A part of the sentence.
        size: Ranks of the job.
    """

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    step: int
    said: str
    size: int = 4


MAJORITY = Parted((1,), (0, 2, 3), 4, "rank 1 has other parameters of ")
PLAIN = "in step 4, since then or earlier: replicas must be equal; it is parameter 0 of SGD (16x16), the only one of 4"
MODEL = "rank 1 has other parameters of default_pg than ranks 0,2 in step {step}, since then or earlier:"
SHARDS = "ranks 1,3 have different parameters of mesh_replicate in step {step}, since then or earlier: replicas must be"


@pytest.mark.parametrize(
    ("worker", "kind", "parted"),
    [
        pytest.param("replicas", "adam", Parted((1,), (0, 2), 4, MODEL.format(step=4), 3), id="one model"),
        # The second optimizer of two already sees the step that the first has begun.
        pytest.param(
            "replicas",
            "two_models",
            Parted((1,), (0, 2), 5, MODEL.format(step=5), 3),
            id="two models",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "replicas",
            "adam",
            Parted((0, 1), (), 4, "the only one of 4", 2),
            id="no majority",
            marks=pytest.mark.thorough,
        ),
        # Two compared steps before the flip, nothing differed, though ranks drew different random numbers.
        pytest.param(TENSORS, "hsdp", Parted((1, 3), (), 6, SHARDS.format(step=6)), id="FSDP2, replicated"),
        pytest.param(TENSORS, "four_replicas", MAJORITY, id="majority", marks=pytest.mark.thorough),
        pytest.param(
            TENSORS,
            "one_skips",
            Parted((1,), (0, 2, 3), 4, "several of all 6 differ"),
            id="one step less",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            TENSORS,
            "plain",
            Parted((1,), (0, 2, 3), 4, PLAIN),
            id="mesh of the world, no names",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_parted(jobs: Jobs, worker: str, kind: str, parted: Parted) -> None:
    """A single flipped bit of a parameter is reported once, with the ranks, the step and the parameter."""
    assert_found(jobs.run(worker, parted.size, kind, str(BAD_RANK)), parted)


def assert_found(job: Job, parted: Parted) -> None:
    """Check that it is all that a judge finds in a job."""
    [found] = findings_of(job)
    assert isinstance(found, Diverged)
    assert (found.is_of_parameters, found.ranks, found.others) == (True, parted.ranks, parted.others)
    assert found.step == parted.step
    assert parted.said in found.text


def test_parts_of_tensor_parallel_layers(jobs: Jobs) -> None:
    """DTensors are compared along the mesh dimension of replicas; if replicated along two dimensions, along both."""
    job = jobs.run(TENSORS, 4, "with_tensor_parallel", str(BAD_RANK))
    assert_found(job, Parted((1, 3), (), 4, ""))
    for view in world_of_job(job).ranks.values():
        compared = [one.parameters.count for one in view.values.outputs if one.parameters is not None]
        assert compared == [6, 3] * (STEPS_OF_TENSORS // EVERY)


@pytest.mark.parametrize(
    ("worker", "size", "kind", "compared"),
    [
        # Parameters are compared when the first optimizer steps that finds a new step.
        pytest.param("replicas", 3, "adam", STEPS - 1, id="one model"),
        pytest.param("replicas", 3, "two_models", 2 * STEPS, id="two models", marks=pytest.mark.thorough),
        pytest.param("replicas", 3, "zero", STEPS - 1, id="ZeRO, which distributes after a step"),
        # At no moment have all ranks made the same steps: they are compared when all are even.
        pytest.param(
            TENSORS, 4, "reordered", STEPS_OF_TENSORS // EVERY, id="steps in another order", marks=pytest.mark.thorough
        ),
    ],
)
def test_healthy(jobs: Jobs, worker: str, size: int, kind: str, compared: int) -> None:
    """Replicas whose parameters are equal at the start of each step cause no finding, and all are compared."""
    job = jobs.run(worker, size, kind, str(NO_RANK))
    assert findings_of(job) == []
    sequences = [
        [one.operation_id.sequence for one in view.values.outputs] for view in world_of_job(job).ranks.values()
    ]
    assert sequences == [sequences[0]] * size
    assert len(sequences[0]) == len({*sequences[0]}) == compared
