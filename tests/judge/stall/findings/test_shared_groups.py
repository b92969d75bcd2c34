"""Groups that threads share although nothing stalls: found once, if they took turns in another order on two ranks."""

from __future__ import annotations

import dataclasses

from otel_torchdist.judge.stall.findings.shared_groups import SharedGroupFinder
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.tape.names.reader import MAIN_THREAD
from tests.support.worlds.fake_world import FakeWorld, group_of

PAIR = group_of(0, 1, description="default_pg")
LOG = "log_metrics (train.py)"


def world_of(*orders: tuple[str, ...]) -> WorldSnapshot:
    """Ranks whose threads have called in these orders, and have come out again."""
    world = FakeWorld(len(orders))
    for rank, order in zip(world.ranks, orders, strict=True):
        for nth, caller in enumerate(order):
            number = rank.enter(PAIR, 1.0 + nth, thread=len(caller), caller=caller, line=30 if caller == LOG else 50)
            rank.end(number, 1.5 + nth)
    snapshot = world.snapshot(20.0)
    views = {rank: dataclasses.replace(view, groups={PAIR.key: PAIR}) for rank, view in snapshot.ranks.items()}
    return dataclasses.replace(snapshot, ranks=views)


def found_in(snapshot: WorldSnapshot) -> list[str]:
    """What is reported of it, at its end."""
    finder = SharedGroupFinder()
    found = [*finder.find(snapshot, is_last=True), *finder.find(snapshot, is_last=True)]
    return [one.text for one in found]


def test_another_order() -> None:
    """Threads of two functions have made the same call on two ranks: their results were mixed up."""
    [said] = found_in(world_of((MAIN_THREAD, LOG), (LOG, MAIN_THREAD)))
    assert said == (
        "two threads of ranks 0-1 share default_pg: the main thread calls all_reduce at train.py:50 and log_metrics "
        "calls all_reduce at train.py:30; the backend pairs calls in the order in which each rank makes them, so "
        "results may be wrong"
    )


def test_same_order() -> None:
    """Threads that take turns in one order, as with a saver that is joined, share a group without harm."""
    assert found_in(world_of((MAIN_THREAD, LOG, MAIN_THREAD), (MAIN_THREAD, LOG, MAIN_THREAD))) == []


def test_one_function_on_each_rank() -> None:
    """A rank that always calls from another thread than the others has an order all the same."""
    assert found_in(world_of((MAIN_THREAD, MAIN_THREAD), (LOG, LOG))) == []


def test_pool_on_one_rank() -> None:
    """A rank that evaluates in a thread, where the other one does so in its main thread, has one, too."""
    assert found_in(world_of((MAIN_THREAD, MAIN_THREAD), (MAIN_THREAD, LOG))) == []


def test_stall_that_says_it() -> None:
    """What the verdict on a stall has said is no finding besides."""
    finder = SharedGroupFinder()
    finder.leave(PAIR.key)
    assert finder.find(world_of((MAIN_THREAD, LOG), (LOG, MAIN_THREAD)), is_last=True) == []
