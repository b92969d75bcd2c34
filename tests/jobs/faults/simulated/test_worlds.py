"""Verdicts on simulated jobs of up to 4,096 ranks: all faults are found, and exactly the right ranks are named."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.jobs.faults.simulated.worlds import MAX_RANKS, Fault, Score, random_world

WORLDS = 120
"""`make faults` judges 1,000."""


@dataclass(frozen=True)
class Judged:
    """Random worlds that have been judged.

    Attributes:
        score: How right the verdicts are.
        worlds: The fault and the size of each world.
    """

    score: Score
    worlds: list[tuple[Fault | None, int]]


@pytest.fixture(scope="module")
def judged() -> Judged:
    """All random worlds, judged one after the other."""
    judged = Judged(Score(), [])
    for seed in range(WORLDS):
        world = random_world(seed)
        judged.worlds.append((world.fault, world.size))
        judged.score.judge(seed, world)
    return judged


def test_random_faults_in_random_worlds(judged: Judged) -> None:
    """Precision and recall are 1: nothing is reported about a healthy world, and each fault gets the true verdict."""
    score = judged.score
    assert score.wrong == []
    assert (score.precision, score.recall) == (1.0, 1.0)
    assert 0.8 * WORLDS < score.faults < WORLDS
    assert score.ranks > MAX_RANKS / 2


def test_worlds_have_all_faults(judged: Judged) -> None:
    """Every fault is there, in small worlds and in large ones."""
    assert {fault for fault, size in judged.worlds if size > 100} == set(Fault)
    assert {fault for fault, size in judged.worlds if size < 30} > {Fault.LATE, Fault.KILLED, Fault.CIRCLE}


def test_wrong_verdict_counts_as_wrong() -> None:
    """A wrong rank expected as guilty spoils both precision and recall."""
    seed = next(seed for seed in range(100) if random_world(seed).fault is Fault.LATE)
    world = random_world(seed)
    world.guilty = (world.guilty[0] + 1,)
    score = Score()
    score.judge(seed, world)
    assert (score.given, score.right, score.precision, score.recall) == (1, 0, 0.0, 0.0)
