"""Ranks that compile together for different durations: ranks that have just finished, and later compilations."""

from __future__ import annotations

import pytest

from otel_torchdist.model.rank_state.stacks import Stacks
from tests.judge.verdict.test_compiling import COMPILING, let_go, wait
from tests.support.worlds.detectors import EVERYBODY, STACK, THRESHOLD_S, Watching
from tests.support.worlds.fake_world import SECOND, START_NS, FakeWorld, group_of


class Compiling(Watching):
    """A detector whose ranks compile at given times, and load batches otherwise."""

    def __init__(self, world: FakeWorld, times: dict[int, list[tuple[float, float]]]) -> None:
        super().__init__(world)
        self._times = times

    def stacks_of(self, nonce: int) -> Stacks | None:
        """See `Watching`."""
        asked_s = self.asked_s.get(nonce)
        if asked_s is None or self.now_s < asked_s + 0.6:
            return None
        compiles = any(begin <= asked_s < end for begin, end in self._times.get(nonce - 0x1000, []))
        return Stacks(START_NS + round(asked_s * SECOND), (COMPILING if compiles else STACK,))


def together(times: dict[int, list[tuple[float, float]]]) -> tuple[FakeWorld, Compiling]:
    """Let all ranks compile, 0 and 1 until second 29; they wait from second 30 on. The others' times are given."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 0.1)
    watching = Compiling(world, times | {rank: [(0.1, 29.0), *times.get(rank, [])] for rank in (0, 1)}).until(30.0)
    for rank in (0, 1):
        world.ranks[rank].enter(EVERYBODY, 30.0)
    return world, watching


def test_one_has_just_finished() -> None:
    """Of two missing ranks, the one that has finished compiling gets the time that its step takes."""
    world, watching = together({2: [(0.1, 75.0)], 3: [(0.1, 59.0)]})
    watching.until(64.0)
    world.ranks[3].enter(EVERYBODY, 64.0)
    watching.until(79.0)
    let_go(world, 79.0)
    watching.until(120.0)
    assert watching.verdicts == []


def test_one_hangs_while_another_compiles() -> None:
    """A rank that does not compile in two consecutive polls is reported, although another still compiles."""
    _, watching = together({2: [(0.1, 500.0)]})
    watching.until(30.0 + 2 * THRESHOLD_S + 4)
    assert [3 in event.verdict.ranks for _, event in watching.verdicts][:1] == [True]


def test_one_hangs_after_it_has_compiled() -> None:
    """A rank that may have finished after the last poll gets as long as the others took afterwards, and no longer."""
    _, watching = together({2: [(0.1, 41.0)], 3: [(0.1, 41.0)]})
    watching.until(41.0 + 7.0 + 2 * THRESHOLD_S)
    assert watching.verdicts == []
    watching.until(41.0 + 7.0 + 3 * THRESHOLD_S)
    assert [event.verdict.ranks for _, event in watching.verdicts] == [(2, 3)]


def test_alone_after_all_together() -> None:
    """After all ranks compiled for 50 s, one rank alone may compile as long again, and longer."""
    world, watching = together({2: [(0.1, 49.0), (60.0, 1_000.0)], 3: [(0.1, 49.0)]})
    watching.until(50.0)
    world.ranks[3].enter(EVERYBODY, 50.0)
    let_go(world, 50.0)
    wait(world, 61.0)
    watching.until(61.0 + 90.0)
    assert watching.verdicts == []
    watching.until(61.0 + 150.0)
    assert [event.verdict.ranks for _, event in watching.verdicts][:1] == [(2,)]


def test_another_rank_at_the_same_line() -> None:
    """Compile times learned from any rank apply to all, and a hang in the compiler does not get ten minutes again."""
    world, watching = together({2: [(0.1, 49.0)], 3: [(0.1, 49.0)], 1: [(60.0, 1_000.0)]})
    watching.until(50.0)
    world.ranks[3].enter(EVERYBODY, 50.0)
    let_go(world, 50.0)
    wait(world, 61.0, late=1)
    watching.until(61.0 + 150.0)
    assert [event.verdict.ranks for _, event in watching.verdicts][:1] == [(1,)]


def test_suspended_while_it_compiles() -> None:
    """An hour of suspension does not count as wait time of the others."""
    _, watching = together({2: [(0.1, 9_000.0)], 3: [(0.1, 9_000.0)]})
    watching.until(60.0)
    watching.now_s += 3_600.0
    watching.until(watching.now_s + 100.0)
    assert watching.verdicts == []


def alone() -> tuple[FakeWorld, Compiling]:
    """Let only rank 2 compile, until second 8.5; the others wait from second 1 on."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 0.1)
    watching = Compiling(world, {2: [(0.1, 8.5)]})
    wait(world, 1.0)
    return world, watching


def test_finished_before_the_threshold() -> None:
    """A rank that compiled for most of the threshold, and finished before it, was seen compiling."""
    world, watching = alone()
    watching.until(14.0)
    let_go(world, 14.0)
    watching.until(60.0)
    assert watching.verdicts == []


def test_compiled_in_an_earlier_step() -> None:
    """A compilation is no excuse in a later step, even if the last call is from autograd's thread (DDP on a GPU)."""
    world, watching = alone()
    watching.until(9.0)
    let_go(world, 9.0)
    for rank in world.ranks:
        rank.end(rank.enter(EVERYBODY, 9.1, thread=602), 9.2)
        rank.step = 1
    wait(world, 10.0, line=50)  # the call before took long, which is usual at that line from then on
    watching.until(10.0 + THRESHOLD_S + 2)
    assert [event.verdict.ranks for _, event in watching.verdicts] == [(2,)]


@pytest.mark.parametrize("end_s", [31.0, 34.9, 37.5])
def test_finished_soon_after_others_wait(end_s: float) -> None:
    """A rank that compiled early in the wait, or before, gets as long for its step as the others."""
    world, watching = together({2: [(0.1, end_s)]})
    world.ranks[3].enter(EVERYBODY, 30.0)
    watching.until(end_s + THRESHOLD_S - 0.5)
    let_go(world, end_s + THRESHOLD_S - 0.5)
    watching.until(90.0)
    assert watching.verdicts == []


def test_finished_while_another_thread_calls() -> None:
    """Calls of another thread of that rank, such as a checkpoint writer, do not hide its compilation."""
    world, watching = alone()
    pair = group_of(2, 3, description="checkpoint")
    for second in range(2, 14):
        watching.until(second)
        world.ranks[2].end(world.ranks[2].enter(pair, second, thread=200), second + 0.1)
    watching.until(14.0)
    assert watching.verdicts == []


def slow(end_s: float) -> tuple[FakeWorld, Compiling]:
    """Let ranks 0, 1 and 3 compile until second 6 and take 30 s for gradients; rank 2 compiles for longer."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 0.1)
    watching = Compiling(world, {rank: [(0.1, end_s if rank == 2 else 6.0)] for rank in range(4)}).until(36.0)
    wait(world, 36.0)
    return world, watching


def test_finished_before_others_wait() -> None:
    """A step after compilation may exceed the threshold if the others' steps take as long."""
    world, watching = slow(27.0)
    watching.until(27.0 + 30.0)
    let_go(world, 27.0 + 30.0)
    watching.until(120.0)
    assert watching.verdicts == []


def test_long_forward_between_two_compilations() -> None:
    """Forward and backward compile separately; the time in between may be as long as for the others."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 0.1)
    watching = Compiling(world, {rank: [(30.0, 34.0)] for rank in (0, 1, 3)} | {2: [(0.1, 28.0), (58.5, 65.0)]})
    watching.until(36.0)
    wait(world, 36.0)
    watching.until(67.0)
    let_go(world, 67.0)
    watching.until(120.0)
    assert watching.verdicts == []


def test_hangs_in_a_long_step_after_it_has_compiled() -> None:
    """A rank that hangs after compiling gets the others' time, from the last poll at which it compiled."""
    _, watching = slow(27.0)
    watching.until(27.0 + 36.0 + 3 * THRESHOLD_S)
    assert [event.verdict.ranks for _, event in watching.verdicts][:1] == [(2,)]


def test_ranks_that_begin_to_wait_one_after_the_other() -> None:
    """Waits that reach the threshold at different times count as one check of the rank that they wait for."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 0.1)
    watching = Compiling(world, {3: [(0.1, 11.6)]})
    for rank, at_s in enumerate((1.0, 2.2, 3.4)):
        world.ranks[rank].enter(EVERYBODY, at_s)
    watching.until(19.0)
    let_go(world, 19.0, late=3)
    watching.until(60.0)
    assert watching.verdicts == []
