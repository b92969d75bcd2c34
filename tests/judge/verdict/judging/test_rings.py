"""Large rings of ranks that wait for each other, as in ring attention and in pipelines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pytest

from otel_torchdist.model.kinds import Flag
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import WorldSnapshot
from tests.support.worlds.fake_world import FakeWorld, group_of
from tests.support.worlds.judging import the_verdict

SIZE = 256
"""Each rank is one step of the search; the recursive search took five frames a step, and Python allows a thousand."""
LIMIT_S = 30.0
"""Processor time; a few seconds are needed. A search that looks at all other ranks in each step needs many minutes."""


def ring_of_messages() -> WorldSnapshot:
    """Each rank sends to the next one, which sends, too."""
    world = FakeWorld(SIZE)
    everybody = group_of(*range(SIZE), description="default_pg")
    for rank in range(SIZE):
        world.ranks[rank].enter(everybody, 1.0 + rank / 100, "send", peer=(rank + 1) % SIZE, flags=Flag.POINT_TO_POINT)
    return world.snapshot(30.0)


def ring_of_pairs() -> WorldSnapshot:
    """Each rank is in a collective with the next one, which is in a collective with the one after it."""
    world = FakeWorld(SIZE)
    for rank in range(SIZE):
        world.ranks[rank].enter(group_of(rank, (rank + 1) % SIZE, description=f"pair {rank}"), 1.0 + rank / 100)
    return world.snapshot(30.0)


@pytest.mark.parametrize("ring", [ring_of_messages, ring_of_pairs])
def test_all_ranks_are_listed_in_time(ring: Callable[[], WorldSnapshot]) -> None:
    """Every wait of a ring that is longer than Python's stack leads to one verdict, which lists all ranks."""
    assert sys.getrecursionlimit() < 5 * SIZE
    world = ring()
    began_s = time.process_time()
    verdict = the_verdict(world)
    assert time.process_time() - began_s < LIMIT_S
    assert (verdict.kind, verdict.ranks) == (VerdictKind.CIRCULAR, tuple(range(SIZE)))
