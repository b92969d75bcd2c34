"""DTensors that are replicated along a dimension of a mesh: those that have parted are found, and others are not."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from otel_torchdist.capture.observers import replica_sets
from otel_torchdist.capture.observers.replica_sets import ReplicatedTensors
from otel_torchdist.stall.findings.values import Diverged
from otel_torchdist.stall.findings.wording import describe_values
from tests.capture.observers.values.test_numerics import findings, world_of
from tests.support.launch.jobs import Jobs
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import KERNELS, environ_of

WORKERS = Path(__file__).parent / "workers"
RANKS, BAD_RANK, NO_RANK = 4, 1, -1
EVERY, STEPS = 2, 7
"""Parameters are compared before each second step; a bit is flipped after step 3."""


@pytest.fixture(scope="module")
def jobs(warm_python: WarmPython) -> Iterator[Jobs]:
    """Runs trainings."""
    jobs = Jobs(warm_python, WORKERS)
    yield jobs
    jobs.clean_up()


@pytest.mark.parametrize("kernel", KERNELS)
def test_two_replicas_of_two_shards(jobs: Jobs, kernel: str) -> None:
    """FSDP2 with replicas, recorded with each kernel: both ranks that have the shard are named, and the parameter.

    The second of two optimizers already sees the step that the first has begun. Two compared steps before it, nothing
    differed, though ranks drew different random numbers.
    """
    [found] = findings(jobs.run("replicated_tensors", RANKS, "hsdp", str(BAD_RANK), environ=environ_of(kernel)))
    assert isinstance(found, Diverged)
    assert (found.is_of_parameters, found.ranks, found.others, found.step) == (True, (1, 3), (), 6)
    assert describe_values(found) == (
        "ranks 1,3 have different parameters of mesh_replicate in step 6, since then or earlier: replicas must be"
        " equal; it is 2.weight, the only one of 6 that differs"
    )


def test_majority(jobs: Jobs) -> None:
    """Of more than two replicas the one that differs is named."""
    [found] = findings(jobs.run("replicated_tensors", RANKS, "four_replicas", str(BAD_RANK)))
    assert isinstance(found, Diverged)
    assert (found.ranks, found.others, found.step) == ((1,), (0, 2, 3), 4)


def test_one_rank_leaves_out_a_step(jobs: Jobs) -> None:
    """It still meets the others, and all of its parameters may differ."""
    [found] = findings(jobs.run("replicated_tensors", RANKS, "one_skips", str(BAD_RANK)))
    assert isinstance(found, Diverged)
    assert (found.ranks, found.others, found.step) == ((1,), (0, 2, 3), 4)
    assert describe_values(found).endswith(": replicas must be equal; several of all 6 differ")


def test_replicas_of_tensor_parallel_parts(jobs: Jobs) -> None:
    """Parts of layers are compared along the dimension of replicas, and what is replicated twice along both."""
    job = jobs.run("replicated_tensors", RANKS, "with_tensor_parallel", str(BAD_RANK))
    [found] = findings(job)
    assert isinstance(found, Diverged)
    assert (found.ranks, found.others, found.step) == ((1, 3), (), 4)
    for view in world_of(job).ranks.values():
        compared = [one.parameters.count for one in view.values.outputs if one.parameters is not None]
        assert compared == [6, 3] * (STEPS // EVERY)


def test_default_group(jobs: Jobs) -> None:
    """A mesh that covers the world has the default group; parameters without a name are described."""
    [found] = findings(jobs.run("replicated_tensors", RANKS, "plain", str(BAD_RANK)))
    assert isinstance(found, Diverged)
    assert describe_values(found) == (
        "rank 1 has other parameters of default_pg than ranks 0,2-3 in step 4, since then or earlier:"
        " replicas must be equal; it is parameter 0 of SGD (16x16), the only one of 4 that differs"
    )


def test_steps_in_another_order(jobs: Jobs) -> None:
    """Where ranks update like parameters in another order, they are compared at a moment when all are even."""
    job = jobs.run("replicated_tensors", RANKS, "reordered", str(NO_RANK))
    assert findings(job) == []
    compared = {
        tuple(one.operation_id.sequence for one in view.values.outputs) for view in world_of(job).ranks.values()
    }
    assert [len(one) for one in compared] == [STEPS // EVERY]


def test_places_are_bounded_and_become_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optimizers beyond the bound are counted, those that are gone free their place, and none is kept alive."""
    monkeypatch.setattr(replica_sets, "MAX_OPTIMIZERS", 2)
    followed = ReplicatedTensors()
    optimizers = [torch.optim.SGD([torch.nn.Parameter(torch.ones(2))]) for _ in range(3)]
    for nth in range(3):
        followed.learn(optimizers[nth])
    assert followed.left_out == 1
    del optimizers[0]
    gc.collect()
    followed.learn(optimizers[-1])
    assert followed.left_out == 0
    optimizers.clear()
    gc.collect()
    assert len(followed._steps) == 0
