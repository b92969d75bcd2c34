"""The verdict `shared_group`: two threads share a group, and no rank is named, since their order is random."""

from __future__ import annotations

import itertools
import signal

from otel_torchdist.judge.verdict.judging.judge import Judge
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.judge.verdict.wording.next_steps import next_step
from otel_torchdist.judge.verdict.wording.sentence import describe_verdict
from otel_torchdist.model.kinds import Flag, Phase
from otel_torchdist.model.rank_state.occupations import OccupationKind, SharedGroup
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.tape.names.reader import MAIN_THREAD
from tests.support.worlds.fake_world import THRESHOLD_NS, FakeRank, FakeWorld, group_of
from tests.support.worlds.judging import located_verdict, named, verdicts

PAIR = group_of(0, 1, description="default_pg")
MAIN, METRICS = 100, 200
LOG = "log_metrics (train.py)"


def call_from_main(rank: FakeRank, at_s: float, is_ddp: bool = False) -> int:
    """Make the main thread's call: a DDP bucket, or a blocking call."""
    if is_ddp:
        rank.engage(OccupationKind.BACKWARD, at_s - 0.01, MAIN)
    return rank.enter(
        PAIR,
        at_s,
        thread=MAIN,
        caller=MAIN_THREAD,
        shape=(1000,),
        line=50,
        blocking=not is_ddp,
        flags=Flag.ASYNC if is_ddp else Flag(0),
        phase=Phase.BACKWARD if is_ddp else Phase.OUTSIDE_BACKWARD,
    )


def call_from_metrics(rank: FakeRank, at_s: float, shape: tuple[int, ...] = (3,)) -> int:
    """Make the call of another thread, which logs metrics."""
    return rank.enter(PAIR, at_s, thread=METRICS, caller=LOG, shape=shape, line=30)


def test_calls_in_another_order() -> None:
    """On rank 0 the main thread came first, on rank 1 the other thread: the sharing is the cause, not a rank."""
    world = FakeWorld(2)
    call_from_main(world.ranks[0], 1.0)
    call_from_metrics(world.ranks[0], 1.1)
    call_from_metrics(world.ranks[1], 1.0)
    call_from_main(world.ranks[1], 1.1)
    verdict = located_verdict(world.snapshot(20.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.SHARED_GROUP, ())
    assert describe_verdict(verdict, 19).startswith(
        "two threads of ranks 0-1 share default_pg: the main thread calls all_reduce at train.py:50 and log_metrics "
        "calls all_reduce at train.py:30; 2 of 2 ranks wait. Which comes first is chance, and all_reduce (sequence "
    )
    assert next_step(verdict).startswith("give one of the two threads a group of its own")


def test_calls_of_different_operations() -> None:
    """If the paired calls differ, the sentence states the duration once, and repeats nothing."""
    world = FakeWorld(2)
    call_from_main(world.ranks[0], 1.0)
    call_from_metrics(world.ranks[0], 1.1)
    world.ranks[1].enter(PAIR, 1.0, "broadcast", thread=METRICS, caller=LOG, line=31)
    call_from_main(world.ranks[1], 1.1)
    said = describe_verdict(located_verdict(world.snapshot(20.0)), 19)
    assert said.startswith("two threads of rank")
    assert said.count("has been blocked for") == 1


def test_with_buckets_of_ddp() -> None:
    """The same if the main thread waits in `backward` for DDP's buckets."""
    world = FakeWorld(2)
    call_from_main(world.ranks[0], 1.0, is_ddp=True)
    call_from_metrics(world.ranks[0], 1.1)
    call_from_metrics(world.ranks[1], 1.0)
    call_from_main(world.ranks[1], 1.1, is_ddp=True)
    assert named(world.snapshot(20.0)) == (VerdictKind.SHARED_GROUP, ())


def test_calls_that_look_the_same() -> None:
    """The same if all calls look equal."""
    world = FakeWorld(2)
    call_from_main(world.ranks[0], 1.0)
    call_from_metrics(world.ranks[0], 1.1, (1000,))
    call_from_metrics(world.ranks[1], 1.0, (1000,))
    call_from_main(world.ranks[1], 1.1)
    assert located_verdict(world.snapshot(20.0)).kind is VerdictKind.SHARED_GROUP


def test_threads_of_a_pool() -> None:
    """Threads that run the same function are told apart while both are blocked."""
    world = FakeWorld(2)
    for rank, order in zip(world.ranks, ((10, 20), (20, 10)), strict=True):
        for thread, elements in zip(itertools.count(200), order, strict=False):
            rank.enter(PAIR, 1.0, thread=thread, caller="reduce_one (train.py)", shape=(elements,))
    assert located_verdict(world.snapshot(20.0)).kind is VerdictKind.SHARED_GROUP


def test_seen_before() -> None:
    """Earlier overlaps explain a current mismatch, even if only one thread is blocked."""
    world = FakeWorld(2)
    for rank, elements in zip(world.ranks, (10, 20), strict=True):
        rank.enter(PAIR, 1.0, shape=(elements,))
        rank.shared_groups = (SharedGroup(PAIR.key, ("all_reduce", "all_reduce"), (None, None), 3),)
    assert located_verdict(world.snapshot(20.0)).kind is VerdictKind.SHARED_GROUP


def test_mismatch_without_sharing() -> None:
    """With one thread per rank, a mismatch is reported as such."""
    world = FakeWorld(2)
    for rank, elements in zip(world.ranks, (10, 20), strict=True):
        rank.enter(PAIR, 1.0, shape=(elements,), caller=MAIN_THREAD)
    assert located_verdict(world.snapshot(20.0)).kind is VerdictKind.MISMATCHED


def test_rank_that_helps_itself_with_a_thread() -> None:
    """Rank 1 always calls from another thread, rank 0 from its main thread: unusual, but not random."""
    world = FakeWorld(2)
    for rank in world.ranks:
        rank.end(call_from_main(rank, 1.0), 1.1)
    call_from_main(world.ranks[0], 2.0)
    call_from_metrics(world.ranks[1], 2.0, (1000,))
    assert located_verdict(world.snapshot(20.0)).kind is VerdictKind.TRANSPORT


def test_rank_that_is_late_in_a_group_of_two_threads() -> None:
    """Both threads of rank 0 wait in the group, and rank 1 has not entered: rank 1 is absent."""
    world = FakeWorld(2)
    call_from_main(world.ranks[0], 1.0)
    call_from_metrics(world.ranks[0], 1.1)
    found = verdicts(world.snapshot(20.0)).values()
    assert [(one.kind, one.ranks) for one in found if one is not None] == [(VerdictKind.ABSENT, (1,))] * 2


def crash(status: int) -> FakeWorld:
    """Let both threads of both ranks wait in the group, in the same order, until rank 0's process ends."""
    world = FakeWorld(2)
    for rank in world.ranks:
        call_from_main(rank, 1.0)
        call_from_metrics(rank, 1.1, (1000,))
    world.ranks[0].is_seen_to_die(2.0, status)
    world.ranks[1].is_seen_to_die(2.1, signal.SIGTERM)
    return world


def test_crash_in_a_group_of_two_threads() -> None:
    """A rank that crashes in a shared group is not blamed: gloo aborts if paired calls do not match."""
    found = verdicts_on_the_dead(crash(signal.SIGABRT))
    assert {(one.kind, one.ranks) for one in found} == {(VerdictKind.SHARED_GROUP, ())}


def test_rank_that_is_killed_in_a_group_of_two_threads() -> None:
    """A rank that is killed from outside has died, whatever its threads share."""
    found = verdicts_on_the_dead(crash(signal.SIGKILL))
    assert {(one.kind, one.ranks) for one in found} == {(VerdictKind.DEAD, (0,))}


def verdicts_on_the_dead(world: FakeWorld) -> list[Verdict]:
    """Return the verdict on each open operation after all ranks have died."""
    snapshot = world.snapshot(20.0)
    judge = Judge(snapshot, THRESHOLD_NS)
    found = [judge.verdict_on(operation.operation_id) for operation in snapshot.ranks[0].open]
    return [one for one in found if one is not None]


def test_groups_of_their_own() -> None:
    """Two threads that wait in different groups share nothing."""
    world, own = FakeWorld(2), group_of(0, 1, nth=1, description="metrics")
    for rank in world.ranks:
        rank.enter(PAIR, 1.0, thread=MAIN, caller=MAIN_THREAD)
        rank.enter(own, 1.0, thread=METRICS, caller=LOG)
    found = verdicts(world.snapshot(20.0)).values()
    assert [one.kind for one in found if one is not None] == [VerdictKind.TRANSPORT] * 2
