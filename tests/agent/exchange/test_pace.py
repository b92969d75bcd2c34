"""How often agents ask each other, what one answers to questions by hand, and how its exchange ends."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest

from otel_torchdist.agent.exchange.peer import STATE_PATH, WAKE_PATH
from otel_torchdist.agent.exchange.wire import Question, WireError, decode_answer, encode
from otel_torchdist.judge.stall.events import Follows
from tests.agent.exchange.listening import stranger
from tests.agent.exchange.peer_agents import QUICK, Agents, agents, exchange_of, world_of
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


def test_what_is_no_question(two: Agents) -> None:
    """There are two paths; a question from our own or an impossible agent_id, or with no valid content, is refused."""
    two.nodes[0].begin(())
    exchange = exchange_of(two, 0)
    assert exchange.respond("/", b"") is None
    assert exchange.respond("/v1/state/", encode(Question(2))) is None
    for agent_id in (0, -1, 1 << 40):  # an id is a rank, and the lowest one judges
        with pytest.raises(WireError, match="no other agent can have its id"):
            exchange.respond(STATE_PATH, encode(Question(agent_id)))
    with pytest.raises(WireError):
        exchange.respond(STATE_PATH, b"")
    for path, body in ((STATE_PATH, encode(Question(2))), (WAKE_PATH, b"")):
        answer = exchange.respond(path, body)
        assert answer is not None
        assert decode_answer(answer).ranks == ()  # it has not seen any yet


def test_stop_leaves_no_threads() -> None:
    """Even during a question to a peer that never answers, an agent ends soon, and its threads with it."""

    def ours() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("torchdist-exchange")}

    gate, asked = threading.Event(), threading.Event()

    def silent(connection: object) -> None:
        asked.set()
        gate.wait(30)

    before = ours()
    with agents(1) as made, stranger(silent) as port:
        peer = dataclasses.replace(made.nodes[0].peer, agent_id=7, port=port)
        made.nodes[0].begin((peer,))
        made.set_suspicion(True)
        made.meet()
        assert asked.wait(10)
        began = time.monotonic()
        made.nodes[0].end()
        assert time.monotonic() - began < QUICK.peaceful_timeout_s + 2
        gate.set()
        until(lambda: ours() <= before)
