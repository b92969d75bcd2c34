"""Chance in the comparison of ranks: few ranks, uneven data, a few calls that are very late."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from otel_torchdist.stall.findings.restraint import Latenesses
from otel_torchdist.stall.findings.stragglers import LEAST_BLAME, LEAST_SHARE

TRIES = 20_000
CALLS = 64


def uniform(chance: random.Random) -> float:
    """Sentences of any length."""
    return chance.uniform(0.5, 1.5)


def heavy(chance: random.Random) -> float:
    """Batches that come late with a heavy tail."""
    return 1.0 + min(0.02 * chance.paretovariate(1.1), 8.0)


def rare(chance: random.Random) -> float:
    """One call in sixty is late by several steps, as if a rank has data left when the others have none."""
    return 1.0 + chance.gauss(0.0, 0.01) + (5.0 if chance.random() < 1 / 60 else 0.0)


def compare(chance: random.Random, size: int, takes: Callable[[random.Random], float], calls: int) -> Latenesses:
    """Calls with an arrival time of its own for each rank."""
    found = Latenesses()
    for _ in range(calls):
        times = [takes(chance) for _ in range(size)]
        before, latest = sorted(times)[-2:]
        found.add(times.index(latest), round((latest - before) * 1e9))
    return found


@pytest.mark.parametrize("takes", [uniform, heavy, rare])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_ranks_that_are_alike(takes: Callable[[random.Random], float], size: int) -> None:
    """The rank that came last most could often be blamed by its share alone, which is always chance here."""
    chance = random.Random(size)
    blamed = 0
    for _ in range(TRIES // CALLS):
        found = compare(chance, size, takes, CALLS)
        rank, late_ns = found.latest
        blamed += late_ns >= LEAST_BLAME * sum(found.late_ns.values()) and late_ns >= LEAST_SHARE * CALLS * 1e9
        assert found.is_chance(rank)
    if (takes, size) in ((uniform, 2), (rare, 2), (rare, 3)):
        assert blamed > 0


def test_rank_that_is_always_last() -> None:
    """One window of calls is enough, for two ranks too."""
    found = Latenesses()
    for _ in range(CALLS):
        found.add(1, 30_000_000)
    assert not found.is_chance(1)
    assert found.is_chance(0)


def test_break_of_another_rank() -> None:
    """Of 60 calls one rank is 0.1 s late in each; that another one was once 10 s late does not hide it."""
    found = Latenesses()
    for _ in range(60):
        found.add(1, 100_000_000)
    found.add(3, 10_000_000_000)
    assert not found.is_chance(1)
    assert found.is_chance(3)


def test_two_slow_ranks_of_many() -> None:
    """Two ranks are late in turns, by chance, and the others never are: neither is named."""
    chance = random.Random(11)
    for _ in range(TRIES // CALLS):
        found = Latenesses()
        for _call in range(CALLS):
            found.add(chance.randrange(2), round(chance.uniform(0, 1e9)))
        assert found.is_chance(found.latest[0])


def test_few_calls_that_are_very_late() -> None:
    """Very late calls are not evidence, however much was lost to them, and do not change what is usual."""
    found = Latenesses()
    for _ in range(4):
        found.add(1, 60_000_000_000)
    for call in range(60):
        found.add(call % 4, 1_000_000)
    assert found.is_chance(1)
    assert found.usual_ns(1) == 15_000_000


def test_counts_that_are_put_together() -> None:
    """Counting in any number of parts gives the same as counting all in one."""
    chance = random.Random(7)
    calls = [(chance.randrange(3), chance.randrange(10**9)) for _ in range(200)]
    whole, parts = Latenesses(), Latenesses()
    for start in range(0, 200, 50):
        part = Latenesses()
        for call in calls[start : start + 50]:
            whole.add(*call)
            part.add(*call)
        parts.update(part)
    for rank in range(3):
        assert whole.usual_ns(rank) == parts.usual_ns(rank)
        assert whole.is_chance(rank) is parts.is_chance(rank)
    assert (whole.calls, whole.last, whole.late_ns, whole.latest) == (
        parts.calls, parts.last, parts.late_ns, parts.latest,
    )  # fmt: skip
