"""Ranks whose backends give up: the verdict comes at once, and names the rank they waited for."""

from __future__ import annotations

import signal

from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.names import GIVEN_UP
from otel_torchdist.model.verdict_kinds import VerdictKind
from otel_torchdist.stall.events import VerdictGiven
from otel_torchdist.stall.run_watch import RunWatch
from otel_torchdist.verdict.model import Verdict
from otel_torchdist.verdict.rules import StallRules
from tests.support.worlds.fake_world import SECOND, START_NS, FakeWorld, group_of

ALL = group_of(0, 1, 2)


def verdicts_at(world: FakeWorld, watch: RunWatch, *looks_s: float) -> list[Verdict]:
    """The verdicts that are given at these polls."""
    events = [event for at_s in looks_s for event in watch.judge(world.snapshot(at_s))]
    return [event.verdict for event in events if isinstance(event, VerdictGiven)]


def two_wait_for_one() -> tuple[FakeWorld, RunWatch]:
    """Ranks 0 and 1 wait for rank 2 since the first second; the threshold is ten seconds."""
    world = FakeWorld(3)
    world.meet(ALL, 0.1)
    for rank in (0, 1):
        world.ranks[rank].enter(ALL, 1.0)
    return world, RunWatch(StallRules(10 * SECOND), START_NS)


def test_verdict_before_the_threshold() -> None:
    """Once a backend has given up, its rank's wait is a stall whatever its age, and rank 2 is the late one."""
    world, watch = two_wait_for_one()
    assert verdicts_at(world, watch, 2.0) == []
    world.ranks[0].failure = GIVEN_UP
    first = verdicts_at(world, watch, *(3.0 + 0.5 * look for look in range(12)))[0]
    assert (first.kind, first.ranks) == (VerdictKind.ABSENT, (2,))


def test_ranks_that_gave_up_are_not_the_dead() -> None:
    """Their backends end them before the next poll: the verdict is the same, and not that they have died."""
    world, watch = two_wait_for_one()
    assert verdicts_at(world, watch, 2.0) == []
    for rank in (0, 1):
        world.ranks[rank].is_seen_to_die(3.0 + rank / 100, signal.SIGABRT, failure=GIVEN_UP)
    first = verdicts_at(world, watch, *(3.5 + 0.5 * look for look in range(12)))[0]
    assert (first.kind, first.ranks) == (VerdictKind.ABSENT, (2,))


def test_a_death_that_made_them_give_up() -> None:
    """A rank that died earlier, without reporting, is still the one that died."""
    world, watch = two_wait_for_one()
    world.ranks[2].is_seen_to_die(2.5, signal.SIGKILL)
    world.ranks[0].failure = world.ranks[1].failure = GIVEN_UP
    first = verdicts_at(world, watch, *(3.0 + 0.5 * look for look in range(12)))[0]
    assert (first.kind, first.ranks) == (VerdictKind.DEAD, (2,))


def test_an_announcement_that_came_to_nothing() -> None:
    """A rank that continues after its backend gave up, and ends cleanly, has not died and waits for no rank."""
    world, watch = two_wait_for_one()
    world.ranks[0].failure = GIVEN_UP
    for rank in (0, 1):
        world.ranks[rank].end(2, 1.5)
        world.ranks[rank].die(4.0, TapeState.FINISHED)
    world.ranks[2].die(4.0, TapeState.FINISHED)
    assert verdicts_at(world, watch, 4.5, 5.0, 20.0) == []
