"""Verdicts on simulated jobs of up to 4,096 ranks: all faults are found, and exactly the right ranks are named."""

from __future__ import annotations

import pytest

from tests.jobs.faults.simulated.worlds import MAX_RANKS, Fault, Score, random_world

FEW, WORLDS = 40, 120
"""`make faults` judges 1,000."""


@pytest.mark.parametrize(
    "seeds",
    [pytest.param(range(FEW), id="few"), pytest.param(range(FEW, WORLDS), id="more", marks=pytest.mark.thorough)],
)
def test_random_faults_in_random_worlds(seeds: range) -> None:
    """Precision and recall are 1: nothing is reported about a healthy world, and each fault gets the true verdict."""
    score = Score()
    for seed in seeds:
        score.judge(seed)
    assert score.wrong == []
    assert (score.precision, score.recall) == (1.0, 1.0)
    assert 0.8 * len(seeds) < score.faults < len(seeds)


@pytest.mark.thorough
def test_worlds_have_all_faults() -> None:
    """Every fault is there, in small worlds and in large ones."""
    worlds = [(world.fault, world.size) for world in map(random_world, range(WORLDS))]
    assert {fault for fault, size in worlds if size > 100} == set(Fault)
    assert {fault for fault, size in worlds if size < 30} > {Fault.LATE, Fault.KILLED, Fault.CIRCLE}
    assert max(size for _, size in worlds) > MAX_RANKS / 2


def test_wrong_verdict_counts_as_wrong() -> None:
    """A wrong rank expected as guilty spoils both precision and recall."""
    seed = next(seed for seed in range(100) if random_world(seed).fault is Fault.LATE)
    world = random_world(seed)
    world.guilty = (world.guilty[0] + 1,)
    score = Score()
    score.judge(seed, world)
    assert (score.given, score.right, score.precision, score.recall) == (1, 0, 0.0, 0.0)
