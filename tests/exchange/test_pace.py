"""Agents that question each other in a hurry while they suspect a stall, and at long intervals in peace."""

from __future__ import annotations

import dataclasses
import time

from otel_torchdist.exchange.peer import STATE_PATH
from otel_torchdist.exchange.wire import Question, encode
from otel_torchdist.stall.peer_agents import Follows
from tests.exchange.peer_agents import QUICK, Agents, exchange_of, world_of
from tests.support.waiting import core_waits_s, until, waited_for_a_core_s
from tests.support.worlds.fake_world import group_of

EVERYBODY = group_of(0, 1, 2, 3)


def test_stall_near_at_a_follower_hurries_the_judge(two: Agents) -> None:
    """The judge suspects nothing and asks rarely; a follower that does wakes it, and is asked within a second."""
    two.pace = dataclasses.replace(QUICK, peaceful_round_s=60.0, peaceful_trust_s=120.0, hurried_trust_s=0.5)
    two.begin()
    two.set_suspicion(True)
    two.wait_until_judges(True, False)
    two.set_suspicion(False)
    until(lambda: two.meet()[1] == Follows(None, False))
    number = two.world.ranks[2].enter(EVERYBODY, 9.0)
    assert world_of(two, 0).ranks[2].open == ()
    two.set_suspicion(True, 1)
    began, before = time.monotonic(), core_waits_s()
    until(lambda: two.meet()[1] == Follows(None, True))
    until(lambda: two.meet() and world_of(two, 0).ranks[2].open != ())
    took_s = time.monotonic() - began - waited_for_a_core_s(since=before)
    assert took_s < QUICK.wake_after_s + 1
    two.world.ranks[2].end(number, 9.5)
    until(lambda: two.meet() and world_of(two, 0).ranks[2].open == ())  # it goes on asking
    two.set_suspicion(False, 1)
    until(lambda: two.meet()[1] == Follows(None, False))


def test_peace_after_haste(two: Agents) -> None:
    """When no agent suspects a stall any more, the judge announces it before the hurried trust of the others ends."""
    two.pace = dataclasses.replace(QUICK, peaceful_round_s=4.0, hurried_trust_s=2.0)
    two.begin()
    two.set_suspicion(True)
    two.wait_until_judges(True, False)
    two.set_suspicion(False)
    two.nodes[1].roles.clear()
    until(lambda: two.meet()[1] == Follows(None, False))  # the hurried trust has ended
    assert {type(role) for role in two.nodes[1].roles} == {Follows}
    assert two.judges() == [True, False]


def test_waking_an_agent_that_is_dead(two: Agents) -> None:
    """A follower that is not asked, and finds no agent to wake, does not wait until its trust ends."""
    two.begin()
    two.set_suspicion(True)
    two.wait_until_judges(True, False)
    two.set_suspicion(False)
    exchange_of(two, 1).respond(STATE_PATH, encode(Question(0)))  # a peaceful question, so it is trusted for long
    two.nodes[0].end()
    two.set_suspicion(True)
    began = time.monotonic()
    two.wait_until_judges(None, True)
    assert time.monotonic() - began < QUICK.peaceful_trust_s / 2
