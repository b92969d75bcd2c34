"""Verdicts that follow remote procedure calls: a missing rank waits for the called worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from otel_torchdist.judge.verdict.verdict import Verdict, locate
from otel_torchdist.judge.verdict.wording.sentence import describe_verdict
from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.remote_calls import CallView, WorkerView
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import WorldSnapshot
from tests.support.worlds.fake_world import SECOND, START_NS, FakeWorld, group_of
from tests.support.worlds.judging import located_verdict, named, verdicts

ALL = group_of(0, 1, 2, description="default_pg")
FIRST_TWO = group_of(0, 1, description="first two")
MAIN = 100
SERVING = 7


def call_at(at_s: float, caller: int, to: int, is_served: bool, thread: int, holds_thread: bool = True) -> CallView:
    """Build one side of a call of `train`."""
    peer = f"worker{caller if is_served else to}"
    begun_ns = START_NS + round(at_s * SECOND)
    return CallView(is_served, "train", peer, begun_ns, thread, holds_thread, None, 50 + caller, 4)


OTHER_FUNCTION = dataclasses.replace(call_at(3, 0, 2, True, SERVING), function="evaluate", nonce=0, number=0)
"""A function that worker 2 runs for worker 0, of which the call's record is not known."""


def with_calls(world: WorldSnapshot, calls: Mapping[int, tuple[CallView, ...]]) -> WorldSnapshot:
    """Return the ranks as workers with these open calls."""
    views = {
        rank: dataclasses.replace(view, worker=WorkerView(f"worker{rank}", 2, calls.get(rank, ())))
        for rank, view in world.ranks.items()
    }
    return dataclasses.replace(world, ranks=views)


def after_one_step(count: int = 3) -> FakeWorld:
    """Build ranks whose main threads have completed one operation."""
    world = FakeWorld(count)
    world.meet(ALL, 0.1)
    world.meet(FIRST_TWO, 0.2)
    return world


def one_verdict(world: WorldSnapshot, group: GroupView) -> Verdict:
    """Return the verdict on the only waiting operation of a group."""
    [found] = [one for key, one in verdicts(world).items() if one is not None and key.channel.group == group.key]
    return found


def test_callee_waits_for_its_caller() -> None:
    """Rank 0 waits for a function on worker 1 that is in an operation which rank 0 has not entered: a circle."""
    world = after_one_step()
    world.ranks[1].enter(ALL, 2.0, thread=SERVING)
    world.ranks[2].enter(ALL, 2.0, thread=MAIN)
    calls = {0: (call_at(1, 0, 1, False, MAIN),), 1: (call_at(1, 0, 1, True, SERVING),)}
    verdict = located_verdict(with_calls(world.snapshot(20.0), calls))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.CIRCULAR, (0, 1))
    assert describe_verdict(verdict, 18).startswith(
        "ranks 0-1 have waited for each other for 18.0 s: rank 0 waits in its call of train on worker1 (rank 1), which "
        "is in all_reduce (sequence 2, default_pg) at train, train.py:42"
    )


def test_cause_behind_a_call() -> None:
    """Rank 1 waits for rank 0, which waits for a function on worker 1 that waits for rank 2 in another group."""
    world = after_one_step()
    pair = group_of(1, 2, description="pair")
    world.ranks[1].enter(pair, 1.5, thread=SERVING)
    world.ranks[1].enter(FIRST_TWO, 2.0, thread=MAIN)
    calls = {0: (call_at(1, 0, 1, False, MAIN),), 1: (call_at(1, 0, 1, True, SERVING),)}
    verdict = located_verdict(with_calls(world.snapshot(20.0), calls))
    assert (verdict.kind, verdict.ranks, verdict.group) == (VerdictKind.ABSENT, (2,), pair)


def test_callee_that_makes_progress() -> None:
    """A function that has just entered its operation is no wait yet: the caller is named."""
    world = after_one_step()
    pair = group_of(1, 2, description="pair")
    world.ranks[1].enter(FIRST_TWO, 2.0, thread=MAIN)
    world.ranks[1].enter(pair, 19.9, thread=SERVING)
    calls = {0: (call_at(1, 0, 1, False, MAIN),), 1: (call_at(1, 0, 1, True, SERVING),)}
    snapshot = with_calls(world.snapshot(20.0), calls)
    verdict = locate(snapshot, one_verdict(snapshot, FIRST_TWO))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (0,))
    assert "; it waits for train on worker1 (rank 1), which is in all_reduce; " in describe_verdict(verdict, 18)


@pytest.mark.parametrize(
    ("of_callee", "stopped", "said"),
    [
        ((call_at(3, 0, 2, True, SERVING),), "", "which has run for 17.0 s"),
        ((call_at(3, 0, 2, True, SERVING, holds_thread=False),), "", "which has returned a future"),
        ((), "", "which is not seen to have begun in 19.0 s"),
        ((OTHER_FUNCTION,), "", "which is not seen to have begun in 19.0 s"),
        ((), "T", "which does not run, because it is stopped"),
    ],
)
def test_rank_that_waits_for_a_call(of_callee: tuple[CallView, ...], stopped: str, said: str) -> None:
    """A rank that is missing because it waits for a call is named, with the state of the call."""
    world = after_one_step()
    world.ranks[1].enter(FIRST_TWO, 2.0, thread=MAIN)
    world.ranks[2].stopped = stopped
    calls = {0: (call_at(1, 0, 2, False, MAIN),), 2: of_callee}
    verdict = located_verdict(with_calls(world.snapshot(20.0), calls))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (0,))
    assert f"; it waits for train on worker2 (rank 2), {said}; " in describe_verdict(verdict, 18)


def test_worker_that_is_not_seen() -> None:
    """A worker in no group is in a separate run, and not seen."""
    world = after_one_step()
    for rank in (1, 2):
        world.ranks[rank].enter(ALL, 2.0, thread=MAIN)
    verdict = located_verdict(with_calls(world.snapshot(20.0), {0: (call_at(1, 0, 9, False, MAIN),)}))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (0,))
    assert "; it waits for train on worker9, which is not seen from here; " in describe_verdict(verdict, 18)


def test_rank_that_serves_a_call_itself() -> None:
    """A driver that also serves the call itself: its own function may be late, so there is no circle."""
    world = after_one_step()
    world.ranks[1].enter(ALL, 2.0, thread=SERVING)
    world.ranks[2].enter(ALL, 2.0, thread=SERVING)
    own = call_at(1, 0, 0, True, SERVING)
    calls = {0: (call_at(1, 0, 1, False, MAIN), own), 1: (call_at(1, 0, 1, True, SERVING),)}
    assert named(with_calls(world.snapshot(20.0), calls)) == (VerdictKind.ABSENT, (0,))


def test_call_of_another_thread() -> None:
    """A call of a thread that never enters these operations proves nothing: the main thread may be late."""
    world = after_one_step()
    world.ranks[1].enter(ALL, 2.0, thread=SERVING)
    world.ranks[2].enter(ALL, 2.0, thread=MAIN)
    calls = {0: (call_at(1, 0, 1, False, 55),), 1: (call_at(1, 0, 1, True, SERVING),)}
    verdict = located_verdict(with_calls(world.snapshot(20.0), calls))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (0,))
    assert "worker1" not in describe_verdict(verdict, 18)


def test_calls_of_two_threads() -> None:
    """Of two calls that hold threads, the later one counts: its thread was the last to enter."""
    world = after_one_step()
    world.ranks[0].end(world.ranks[0].enter(ALL, 0.3, thread=55), 0.4)
    world.meet(ALL, 0.5)
    for rank in (1, 2):
        world.ranks[rank].end(world.ranks[rank].enter(ALL, 0.6, thread=55), 0.7)
        world.ranks[rank].enter(ALL, 2.0, thread=MAIN)
    earlier, later = call_at(1, 0, 2, False, 55), call_at(1.5, 0, 1, False, MAIN)
    calls = {0: (earlier, later), 1: (call_at(1.5, 0, 1, True, SERVING),), 2: (call_at(1, 0, 2, True, SERVING),)}
    verdict = located_verdict(with_calls(world.snapshot(20.0), calls))
    print(verdict, describe_verdict(verdict, 18))


def test_call_that_nobody_waits_for() -> None:
    """A call of `rpc_async` is no reason to be late."""
    world = after_one_step()
    for rank in (1, 2):
        world.ranks[rank].enter(ALL, 2.0, thread=MAIN)
    calls = {0: (call_at(1, 0, 1, False, MAIN, holds_thread=False),), 1: (call_at(1, 0, 1, True, SERVING),)}
    verdict = located_verdict(with_calls(world.snapshot(20.0), calls))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (0,))
    assert "worker1" not in describe_verdict(verdict, 18)
