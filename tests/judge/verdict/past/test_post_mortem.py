"""Verdicts on finished runs from their tapes: the rank that caused the end, and ranks that only followed."""

from __future__ import annotations

import dataclasses

import pytest

from otel_torchdist.judge.verdict.past.last_moment import last_moment
from otel_torchdist.judge.verdict.past.post_mortem import judge
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.kinds import How, TapeState
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.stacks import Stacks
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.support.worlds.detectors import STACK
from tests.support.worlds.fake_world import RUN, SECOND, START_NS, THRESHOLD_NS, FakeWorld

RULES = StallRules(THRESHOLD_NS)
LATER_NS = START_NS + 1_000_000 * SECOND
"""The time of the diagnosis."""


def verdict_of(world: FakeWorld, now_s: float, signs_s: dict[int, float]) -> Verdict | None:
    """Return the verdict after all ranks are gone. Their last heartbeats are at `signs_s`, by default at `now_s`."""
    for rank in world.ranks:
        rank.alive = False
        rank.heartbeat_age_s = now_s - signs_s.get(rank.rank, now_s)
    views = [rank.view(now_s) for rank in world.ranks]
    return judge(last_moment(RUN, views, LATER_NS), RULES)


def tear(world: FakeWorld, group: GroupView, rank: int, at_s: float, ends: bool = True) -> None:
    """Let a rank enter the next operation, which fails after half a second, and may end the rank."""
    one = world.ranks[rank]
    one.end(one.enter(group, at_s), at_s + 0.5, How.FAILED, "RuntimeError")
    if ends:
        one.die(at_s + 0.5, TapeState.FAILED, "RuntimeError")


def test_killed_together_while_they_wait_for_one(world: FakeWorld, group: GroupView) -> None:
    """Ranks are killed together while they wait: the missing rank is absent, with the age at that time."""
    for rank in (0, 1, 3):
        world.ranks[rank].enter(group, 5.0)
    verdict = verdict_of(world, 20.0, {0: 19.6, 1: 19.9, 2: 19.3})
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (2,))
    assert verdict.waiting == (0, 1, 3)
    assert verdict.age_ns(START_NS + 20 * SECOND) == 15 * SECOND


def test_killed_together_in_passing(world: FakeWorld, group: GroupView) -> None:
    """Ranks are killed in an operation that had not stalled: no rank is blamed."""
    for rank in range(3):
        world.ranks[rank].enter(group, 19.9)
    assert verdict_of(world, 20.0, {0: 19.2, 3: 19.4}) is None


def test_one_fell_silent_before(world: FakeWorld, group: GroupView) -> None:
    """One rank fell silent, and the others, which waited for it, were killed before the threshold: it was dead."""
    for rank in (0, 1, 3):
        world.ranks[rank].enter(group, 12.5)
    verdict = verdict_of(world, 20.0, {2: 12.0})
    assert verdict is not None
    assert (verdict.kind, verdict.ranks, verdict.waiting) == (VerdictKind.DEAD, (2,), (0, 1, 3))


@pytest.mark.parametrize(("by_signal", "kind"), [(True, VerdictKind.ABSENT), (False, VerdictKind.DEAD)])
def test_one_held_its_gil(world: FakeWorld, group: GroupView, by_signal: bool, kind: VerdictKind) -> None:
    """A stopped heartbeat does not prove a death if a signal took a stack after it."""
    for rank in (0, 1, 3):
        world.ranks[rank].enter(group, 5.0)
    for rank in world.ranks:
        rank.alive = False
        rank.heartbeat_age_s = 14.0 if rank.rank == 2 else 0.5
    views = [rank.view(20.0) for rank in world.ranks]
    views[2] = dataclasses.replace(views[2], stacks=Stacks(START_NS + 16 * SECOND, (STACK,), by_signal))
    verdict = judge(last_moment(RUN, views, LATER_NS), RULES)
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (kind, (2,))


def test_one_compiled(world: FakeWorld, group: GroupView) -> None:
    """A rank that compiles is not late, since compile times differ between ranks."""
    for rank in (0, 1, 3):
        world.ranks[rank].enter(group, 5.0)
    for rank in world.ranks:
        rank.alive = False
    views = [rank.view(20.0) for rank in world.ranks]
    compiler = CallSiteName("compile_fx", "/usr/lib/python3/torch/_inductor/compile_fx.py", 1)
    stack = dataclasses.replace(STACK, frames=(compiler, *STACK.frames))
    assert judge(last_moment(RUN, views, LATER_NS), RULES) is not None
    views[2] = dataclasses.replace(views[2], stacks=Stacks(START_NS + 16 * SECOND, (stack,)))
    assert judge(last_moment(RUN, views, LATER_NS), RULES) is None


def test_one_raised_and_the_launcher_killed_the_others(world: FakeWorld, group: GroupView) -> None:
    """The rank that raised is the cause, not the interrupted rank or the killed one."""
    world.ranks[0].enter(group, 19.0)
    tear(world, group, 1, 19.2)
    world.ranks[2].die(19.1, TapeState.FAILED, "ValueError")
    verdict = verdict_of(world, 20.0, {0: 19.0, 1: 19.3, 2: 19.1, 3: 19.2})
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.DEAD, (2,))
    assert verdict.failures[2] == "ValueError"


@pytest.mark.parametrize("ends", [True, False])
def test_one_died_and_the_others_were_interrupted(world: FakeWorld, group: GroupView, ends: bool) -> None:
    """The rank that ended without a record and without a failed operation died first, even by a small margin."""
    for rank in (0, 1, 3):
        tear(world, group, rank, 19.0 + rank / 10, ends)
    verdict = verdict_of(world, 19.9, {0: 19.0, 1: 19.1, 2: 18.9, 3: 18.8})
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.DEAD, (2,))
    assert verdict.age_ns(LATER_NS) == pytest.approx(0.8 * SECOND)


def test_order_that_heartbeats_do_not_show(world: FakeWorld, group: GroupView) -> None:
    """Two ranks ended without a record, with last heartbeats within a second: their order is unknown."""
    tear(world, group, 0, 19.0)
    tear(world, group, 1, 19.0)
    assert verdict_of(world, 19.6, {0: 19.0, 1: 19.0, 2: 18.2, 3: 18.9}) is None


def test_one_left_cleanly(world: FakeWorld, group: GroupView) -> None:
    """A rank that finished before an operation that failed on the others is absent."""
    world.ranks[2].die(18.0, TapeState.FINISHED)
    for rank in (0, 1, 3):
        tear(world, group, rank, 19.0)
    verdict = verdict_of(world, 19.6, {2: 18.0})
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (2,))


def test_launcher_asked_a_rank_in_the_operation_to_end(world: FakeWorld, group: GroupView) -> None:
    """A rank that had entered, and exits with code 0 when a launcher ends it, is not named beside the missing rank."""
    world.ranks[2].die(18.0, TapeState.FINISHED)
    world.ranks[0].enter(group, 19.0)
    for rank in (1, 3):
        tear(world, group, rank, 19.0)
    world.ranks[0].die(19.6, TapeState.FINISHED)
    verdict = verdict_of(world, 19.7, {2: 18.0})
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (2,))


def test_all_finished(world: FakeWorld) -> None:
    """A run that ended cleanly has no verdict."""
    for rank in world.ranks:
        rank.die(10.0, TapeState.FINISHED)
    assert verdict_of(world, 10.0, {}) is None


def test_living_run(world: FakeWorld, group: GroupView) -> None:
    """While a rank lives, the run is judged now, and a dead rank is dead since its last sign of life."""
    for rank in (0, 1, 3):
        world.ranks[rank].enter(group, 12.5)
    world.ranks[2].die(20.0)
    world.ranks[2].heartbeat_age_s = 8.0
    moment = last_moment(RUN, [rank.view(20.0) for rank in world.ranks], START_NS + 20 * SECOND)
    assert (moment.is_now, moment.world.taken_ns) == (True, START_NS + 20 * SECOND)
    assert moment.world.ranks[2].gone_since_ns == START_NS + 12 * SECOND
    verdict = judge(moment, RULES)
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.DEAD, (2,))
