"""Findings on groups shared by two threads: reported once, if the threads' order differed between two ranks."""

from __future__ import annotations

import dataclasses

from otel_torchdist.judge.stall.findings.shared_groups import SharedGroupFinder
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.tape.names.reader import MAIN_THREAD
from tests.support.worlds.fake_world import FakeWorld, group_of

PAIR = group_of(0, 1, description="default_pg")
LOG = "log_metrics (train.py)"


def world_of(*orders: tuple[str, ...]) -> WorldSnapshot:
    """Build ranks whose threads have made and completed calls in these orders."""
    world = FakeWorld(len(orders))
    for rank, order in zip(world.ranks, orders, strict=True):
        for nth, caller in enumerate(order):
            number = rank.enter(PAIR, 1.0 + nth, thread=len(caller), caller=caller, line=30 if caller == LOG else 50)
            rank.end(number, 1.5 + nth)
    snapshot = world.snapshot(20.0)
    views = {rank: dataclasses.replace(view, groups={PAIR.key: PAIR}) for rank, view in snapshot.ranks.items()}
    return dataclasses.replace(snapshot, ranks=views)


def found_in(snapshot: WorldSnapshot) -> list[str]:
    """Return the findings at the end of the run."""
    finder = SharedGroupFinder()
    found = [*finder.find(snapshot, is_last=True), *finder.find(snapshot, is_last=True)]
    return [one.text for one in found]


def test_another_order() -> None:
    """Threads with different functions made the same call on two ranks: their results were mixed up."""
    [said] = found_in(world_of((MAIN_THREAD, LOG), (LOG, MAIN_THREAD)))
    assert said == (
        "two threads of ranks 0-1 share default_pg: the main thread calls all_reduce at train.py:50 and log_metrics "
        "calls all_reduce at train.py:30; the backend pairs calls in the order in which each rank makes them, so "
        "results may be wrong"
    )


def test_same_order() -> None:
    """Threads that take turns in the same order on all ranks, such as a joined saver, share a group safely."""
    assert found_in(world_of((MAIN_THREAD, LOG, MAIN_THREAD), (MAIN_THREAD, LOG, MAIN_THREAD))) == []


def test_one_function_on_each_rank() -> None:
    """A rank that makes all calls from a different thread than the others still has a defined order."""
    assert found_in(world_of((MAIN_THREAD, MAIN_THREAD), (LOG, LOG))) == []


def test_pool_on_one_rank() -> None:
    """So has a rank that evaluates in a thread, while the other rank evaluates in its main thread."""
    assert found_in(world_of((MAIN_THREAD, MAIN_THREAD), (MAIN_THREAD, LOG))) == []


def test_stall_that_says_it() -> None:
    """A shared group reported by a verdict is not reported as a finding too."""
    finder = SharedGroupFinder()
    finder.leave(PAIR.key)
    assert finder.find(world_of((MAIN_THREAD, LOG), (LOG, MAIN_THREAD)), is_last=True) == []
