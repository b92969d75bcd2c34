"""Agents of several nodes that meet over loopback: which of them judges, when, and which one takes over."""

from __future__ import annotations

import dataclasses
import logging
import socket
import threading
import time

import pytest

from otel_torchdist.agent.exchange.peer import STATE_PATH
from otel_torchdist.agent.exchange.wire import Question, encode
from otel_torchdist.judge.stall.events import Follows, Leads, Undecided
from otel_torchdist.judge.stall.watch import CHECK_S
from otel_torchdist.node.job.peers import Peers
from tests.agent.exchange.listening import HOST, peer_at, stranger
from tests.agent.exchange.peer_agents import QUICK, TOKEN, Agents, agents, exchange_of
from tests.support.waiting import until
from tests.support.worlds.fake_world import RUN


def test_lowest_id_judges_and_sees_all(three: Agents) -> None:
    """Of three agents that suspect a stall, the lowest soon sees all ranks, its own as they are; the others follow."""
    three.begin()
    three.set_suspicion(True)
    began = time.monotonic()
    three.wait_until_judges(True, False, False)
    assert time.monotonic() - began < 5
    role = three.nodes[0].meet()
    assert isinstance(role, Leads)
    assert role.agent_id == 0
    world, local = role.world, three.nodes[0].local()
    assert sorted(world.ranks) == [0, 1, 2, 3, 4, 5]
    assert [view.is_remote for view in world.in_order] == [False, False, True, True, True, True]
    assert {rank: world.ranks[rank] for rank in (0, 1)} == local.ranks
    assert (world.run, world.taken_ns, dict(world.unreachable)) == (RUN, local.taken_ns, {})


def test_in_peace_too(two: Agents) -> None:
    """With no stall suspected, the higher id still learns that it does not judge, and nothing is hurried."""
    two.begin()
    two.wait_until_judges(True, False)
    assert two.nodes[1].meet() == Follows(None, False)


def test_alone(two: Agents) -> None:
    """An agent that knows no other judges by itself and waits for none, even if it suspects a stall."""
    two.nodes[0].begin(())
    two.nodes[0].suspects_stall = True
    role = two.nodes[0].meet()
    assert isinstance(role, Leads)
    assert sorted(role.world.ranks) == [0, 1]


def test_judgement_waits_for_answers(three: Agents) -> None:
    """The first judgement on a suspected stall is based on what all see: it is never made before they have answered."""
    three.pace = dataclasses.replace(QUICK, hold_s=30.0)
    three.begin()
    three.set_suspicion(True)
    node, *others = three.nodes
    for other in others:  # before they have met, they answer without ranks
        other.meet()
    until(lambda: three.meet() and isinstance(node.roles[-1], Leads))
    assert isinstance(node.roles[0], Undecided)
    last = node.roles[-1]
    assert isinstance(last, Leads)
    assert sorted(last.world.ranks) == [0, 1, 2, 3, 4, 5]


def test_judgement_waits_for_a_new_look(two: Agents) -> None:
    """An agent that answers but does not come to read its tapes: what it saw before the suspicion does not count."""
    two.pace = dataclasses.replace(QUICK, hold_s=30.0)
    two.begin()
    two.wait_until_judges(True, False)
    time.sleep(2 * CHECK_S)  # the other one has not met since
    two.nodes[0].suspects_stall = True
    asked_at = time.monotonic()
    while time.monotonic() - asked_at < 0.5:
        assert isinstance(two.nodes[0].meet(), Undecided)
    two.nodes[1].meet()
    until(lambda: isinstance(two.nodes[0].meet(), Leads))


def test_judgement_does_not_wait_for_ever() -> None:
    """If another agent does not answer, judging is put off by its hold, and not for as long as questions may take."""

    def silent(connection: object) -> None:
        gate.wait(30)

    gate = threading.Event()
    with agents(1) as made, stranger(silent) as port:
        made.pace = dataclasses.replace(QUICK, hold_s=0.5, peaceful_timeout_s=60.0, hurried_timeout_s=60.0)
        peer = dataclasses.replace(made.nodes[0].peer, agent_id=7, port=port)
        made.nodes[0].begin((peer,))
        made.set_suspicion(True)
        began = time.monotonic()
        until(lambda: isinstance(made.nodes[0].meet(), Leads))
        assert made.pace.hold_s <= time.monotonic() - began < 10
        gate.set()


def test_next_one_takes_over(three: Agents) -> None:
    """When the agent that judges dies, the next id takes over within seconds, and only after asking the third."""
    three.pace = dataclasses.replace(QUICK, hold_s=30.0)
    three.begin()
    three.set_suspicion(True)
    three.wait_until_judges(True, False, False)
    three.nodes[0].end()
    for node in three.nodes:
        node.roles.clear()
    began = time.monotonic()
    three.wait_until_judges(None, True, False)
    assert time.monotonic() - began < 6
    judged = [role for role in three.nodes[1].roles if isinstance(role, Leads)]
    assert all({2, 3, 4, 5} <= role.world.ranks.keys() for role in judged)
    assert all(role.agent_id == 2 for role in judged)
    judged = [role for role in three.nodes[2].roles if isinstance(role, Leads)]
    assert all({2, 3, 4, 5} <= role.world.ranks.keys() for role in judged)


def test_low_one_that_is_back_judges_again(two: Agents) -> None:
    """An agent that dies and is restarted, under another instance on the same port, judges as before."""
    two.begin()
    two.set_suspicion(True)
    two.wait_until_judges(True, False)
    for _ in range(2):
        two.nodes[0].end()
        two.wait_until_judges(None, True)
        two.nodes[0].listen()
        two.begin(0)
        two.wait_until_judges(True, False)


def test_high_one_that_is_first(two: Agents) -> None:
    """An agent that is alone judges; the lower id takes over once it is up and gets a question."""
    two.begin(1)
    two.set_suspicion(True, 1)
    two.wait_until_judges(None, True)
    two.begin(0)
    two.wait_until_judges(True, False)


def test_low_one_that_asks_while_a_question_to_it_fails(two: Agents) -> None:
    """An agent follows a lower id that has begun to ask, though its own question from before gets no answer."""

    def ask_instead(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        exchange_of(two, 1).respond(STATE_PATH, encode(Question(0, is_hurried=True)))

    two.pace = dataclasses.replace(QUICK, hurried_trust_s=60.0)
    with stranger(ask_instead) as port:
        two.nodes[1].begin((peer_at(port, 0),))
        two.set_suspicion(True)
        (them,) = exchange_of(two, 1).others
        until(lambda: two.meet() and them.unanswered)
        assert two.judges() == [None, False]


def test_agent_that_is_announced_later(two: Agents) -> None:
    """Agents that do not know each other judge separately until they are introduced; known peers stay."""
    for node in two.nodes:
        node.begin(())
    two.set_suspicion(True)
    assert two.judges() == [True, True]
    for number in (0, 1):
        peers = Peers(RUN, TOKEN, two.nodes[number].agent_id, HOST, two.others_of(number))
        for _ in range(2):
            exchange_of(two, number).renew(peers)
    two.wait_until_judges(True, False)
    exchange_of(two, 0).renew(Peers(RUN, TOKEN, 0, HOST, ()))
    two.wait_until_judges(True, False)


def test_asked_by_an_agent_that_has_not_been_announced(two: Agents, caplog: pytest.LogCaptureFixture) -> None:
    """An agent follows a peer whose address it does not know; it wakes it there once it knows."""
    two.nodes[1].begin(())
    exchange = exchange_of(two, 1)
    two.nodes[1].meet()
    exchange.respond(STATE_PATH, encode(Question(0)))
    two.set_suspicion(True)
    then = time.monotonic() + 3 * QUICK.wake_after_s
    while time.monotonic() < then:
        assert isinstance(two.nodes[1].meet(), Follows)
        time.sleep(0.02)
    two.begin(0)
    exchange.renew(Peers(RUN, TOKEN, two.nodes[1].agent_id, HOST, two.others_of(1)))
    two.wait_until_judges(True, False)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
