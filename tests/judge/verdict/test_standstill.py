"""Suspended and resumed jobs: time that does not count, and stalls that are still reported."""

from __future__ import annotations

import pytest

from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.support.worlds.detectors import EVERYBODY, THRESHOLD_S, Watching
from tests.support.worlds.fake_world import FakeWorld

LATE = 2
BEGAN_S, SUSPENDED_S, RESUMED_S = 1.1, 3.0, 63.0


def waiting_world() -> tuple[FakeWorld, dict[int, int]]:
    """Build a world in which all ranks but one wait from 1.1 s on."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 1.0)
    return world, {rank: world.ranks[rank].enter(EVERYBODY, BEGAN_S) for rank in range(4) if rank != LATE}


def suspend(watch: Watching, ranks: range | list[int], with_agent: bool) -> None:
    """Let none of these ranks run for a minute."""
    watch.until(SUSPENDED_S)
    if with_agent:
        watch.now_s = RESUMED_S
        watch.poll()
        return
    while watch.now_s < RESUMED_S:
        for rank in ranks:
            watch.world.ranks[rank].heartbeat_age_s = watch.now_s + 0.25 - SUSPENDED_S
        watch.until(watch.now_s + 0.25)
    for rank in ranks:
        watch.world.ranks[rank].heartbeat_age_s = 0.0


@pytest.mark.parametrize("with_agent", [True, False], ids=["agent too", "ranks only"])
def test_healthy_job(with_agent: bool) -> None:
    """A rank that needs four seconds is no stall, however long the job was suspended in between."""
    world, waiting = waiting_world()
    watch = Watching(world)
    suspend(watch, range(4), with_agent)
    watch.until(RESUMED_S + 2.1)
    late = world.ranks[LATE].enter(EVERYBODY, watch.now_s)
    for rank, number in [*waiting.items(), (LATE, late)]:
        world.ranks[rank].end(number, watch.now_s)
    watch.until(RESUMED_S + 30)
    assert watch.reported == []


def test_suspended_again_and_again() -> None:
    """Three suspensions in one wait of eight seconds, as in time slicing with other jobs, do not add up to a stall."""
    world, waiting = waiting_world()
    watch = Watching(world)
    for then_s in (3.0, 65.0, 127.0):
        watch.until(then_s)
        watch.now_s += 60.0
        watch.poll()
    watch.until(191.0)
    late = world.ranks[LATE].enter(EVERYBODY, watch.now_s)
    for rank, number in [*waiting.items(), (LATE, late)]:
        world.ranks[rank].end(number, watch.now_s)
    watch.until(220.0)
    assert watch.reported == []


@pytest.mark.parametrize("with_agent", [True, False], ids=["agent too", "ranks only"])
def test_rank_that_never_comes(with_agent: bool) -> None:
    """A real stall is reported after the threshold, counted without the suspension."""
    world, _ = waiting_world()
    watch = Watching(world)
    suspend(watch, range(4), with_agent)
    ran_s = SUSPENDED_S - BEGAN_S
    watch.until(RESUMED_S + THRESHOLD_S - ran_s - 2.0)
    assert watch.verdicts == []
    watch.until(RESUMED_S + THRESHOLD_S - ran_s + 2.0)
    [(_, given)] = watch.verdicts
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.ABSENT, (LATE,))


def test_many_short_slices() -> None:
    """Under gang scheduling with slices shorter than the threshold a stall is still reported."""
    world, _ = waiting_world()
    watch = Watching(world)
    for _ in range(4):
        watch.until(watch.now_s + 5.0)
        watch.now_s += 30.0
    assert {given.verdict.ranks for _, given in watch.verdicts} == {(LATE,)}


def test_only_some_are_stopped() -> None:
    """If only some ranks are stopped, they hold the others up, and the time counts."""
    world, _ = waiting_world()
    watch = Watching(world)
    world.ranks[LATE].stopped, world.ranks[LATE].stopped_since_s = "T", SUSPENDED_S
    suspend(watch, [LATE], with_agent=False)
    assert (watch.verdicts[0][1].verdict.kind, watch.verdicts[0][1].verdict.ranks) == (VerdictKind.FROZEN, (LATE,))
    assert watch.verdicts[0][0] < BEGAN_S + THRESHOLD_S + 2.0


def test_slow_agent() -> None:
    """An agent without a free core polls seconds apart, which looks like a suspension: it reports later."""
    world, _ = waiting_world()
    watch = Watching(world)
    while watch.now_s < 2 * THRESHOLD_S + 6.0:
        watch.now_s += 3.0
        watch.poll()
    assert {given.verdict.ranks for _, given in watch.verdicts} == {(LATE,)}
