"""Verdicts on simulated jobs of up to 4,096 ranks: all faults are found, and exactly the right ranks are named."""

from __future__ import annotations

from collections import Counter

from tests.jobs.faults.worlds import MAX_RANKS, Fault, Score, random_world

WORLDS = 200
"""`make faults` judges 1,000."""


def test_random_faults_in_random_worlds() -> None:
    """Precision and recall are 1: nothing is reported about a healthy world, and each fault gets the true verdict."""
    score = Score()
    for seed in range(WORLDS):
        score.judge(seed)
    assert score.wrong == []
    assert (score.precision, score.recall) == (1.0, 1.0)
    assert 0.8 * WORLDS < score.faults < WORLDS
    assert score.ranks > MAX_RANKS / 2


def test_worlds_have_all_faults() -> None:
    """Every fault is there, in small worlds and in large ones."""
    worlds = [random_world(seed) for seed in range(WORLDS)]
    assert set(Counter(world.fault for world in worlds if world.size > 100)) == set(Fault)
    assert {world.fault for world in worlds if world.size < 30} > {Fault.LATE, Fault.KILLED, Fault.CIRCLE}


def test_wrong_verdict_counts_as_wrong() -> None:
    """A wrong rank expected as guilty spoils both precision and recall."""
    seed = next(seed for seed in range(100) if random_world(seed).fault is Fault.LATE)
    world = random_world(seed)
    world.guilty = (world.guilty[0] + 1,)
    score = Score()
    score.judge(seed, world)
    assert (score.given, score.right, score.precision, score.recall) == (1, 0, 0.0, 0.0)
