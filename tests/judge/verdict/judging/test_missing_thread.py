"""The thread shown for a missing rank: the one that should enter, not one that waits elsewhere."""

from __future__ import annotations

import dataclasses

from otel_torchdist.judge.verdict.verdict import Verdict, locate
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.stacks import Stacks, ThreadStack
from otel_torchdist.model.snapshot import WorldSnapshot
from tests.support.worlds.fake_world import FakeWorld, group_of
from tests.support.worlds.judging import the_verdict

DEFAULT = group_of(0, 1, description="default_pg")
CHECKPOINT = group_of(0, 1, nth=1, description="checkpoint")
MAIN, SAVER = 100, 200
IDLE = CallSiteName("wait", "/usr/lib/python3.11/threading.py", 9)


def stack(thread: int, name: str, function: str) -> ThreadStack:
    """Build a thread in a user function."""
    return ThreadStack(thread, name, (CallSiteName(function, "/home/user/train.py", 7),))


def located(world: FakeWorld, stacks: dict[int, tuple[ThreadStack, ...]]) -> Verdict:
    """Return the located verdict on ranks with these stacks."""
    snapshot = world.snapshot(25.0)
    views = {
        rank: dataclasses.replace(view, stacks=Stacks(snapshot.taken_ns, stacks[rank])) if rank in stacks else view
        for rank, view in snapshot.ranks.items()
    }
    world_with_stacks = WorldSnapshot(snapshot.run, snapshot.taken_ns, views)
    return locate(world_with_stacks, the_verdict(world_with_stacks))


def functions(verdict: Verdict) -> dict[int, str]:
    """Return the function shown for each rank."""
    return {rank: place.frame.function for rank, place in verdict.places.items() if place.frame is not None}


def test_main_thread_is_shown_although_another_one_waits() -> None:
    """Rank 1's main thread loads data; another thread has just entered an operation of the checkpoint group."""
    world = FakeWorld(2)
    world.meet(DEFAULT, 0.1)
    world.ranks[0].enter(DEFAULT, 1.0)
    world.ranks[1].enter(CHECKPOINT, 24.8, "barrier", thread=SAVER)
    threads = (stack(SAVER, "saver", "save"), stack(MAIN, "MainThread", "load_batch"))
    verdict = located(world, {1: threads})
    assert functions(verdict)[1] == "load_batch"


def test_both_threads_of_a_checkpoint() -> None:
    """Shown is the thread named like the waiting thread on the other rank, or the last one in the group."""
    world = FakeWorld(2)
    world.meet(DEFAULT, 0.1)
    world.ranks[0].enter(CHECKPOINT, 1.0, "barrier", thread=SAVER)
    world.ranks[1].enter(DEFAULT, 2.0)
    verdict = located(
        world,
        {
            0: (stack(MAIN, "MainThread", "join_saver"), stack(SAVER, "saver", "meet")),
            1: (stack(MAIN, "MainThread", "train_step"), stack(300, "saver", "write_shard")),
        },
    )
    assert functions(verdict) == {0: "join_saver", 1: "write_shard"}


def test_thread_that_has_nothing_to_do_is_not_shown() -> None:
    """An idle worker of a pool is not shown: the main thread should give it work."""
    world = FakeWorld(2)
    number = world.ranks[1].enter(CHECKPOINT, 0.1, "barrier", thread=SAVER)
    world.ranks[1].end(number, 0.2)
    number = world.ranks[0].enter(CHECKPOINT, 0.1, "barrier", thread=SAVER)
    world.ranks[0].end(number, 0.2)
    world.ranks[0].enter(CHECKPOINT, 1.0, "barrier", thread=SAVER)
    idle = ThreadStack(SAVER, "saver", (IDLE,))
    verdict = located(world, {1: (stack(MAIN, "MainThread", "evaluate"), idle)})
    assert (verdict.ranks, functions(verdict)[1]) == ((1,), "evaluate")
