"""Agents that do not answer, or not as agents of the run: what is reported of their ranks."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from otel_torchdist.judge.stall.events import Leads
from otel_torchdist.node.job.peers import Peers
from tests.agent.exchange.listening import HOST
from tests.agent.exchange.peer_agents import QUICK, Agents, exchange_of, world_of
from tests.support.waiting import until
from tests.support.worlds.fake_world import RUN


def test_agent_out_of_reach(two: Agents, caplog: pytest.LogCaptureFixture) -> None:
    """Its live ranks are listed with its node, a dead one stays known; one warning, then everything recovers."""
    caplog.set_level(logging.INFO, "otel_torchdist")
    two.world.ranks[3].die(9.0)
    two.begin()
    two.set_suspicion(True)
    two.wait_until_judges(True, False)
    assert world_of(two, 0).ranks[3].is_dead
    two.nodes[1].end()
    until(lambda: world_of(two, 0).unreachable)
    world = world_of(two, 0)
    assert dict(world.unreachable) == {2: "node-2"}
    assert sorted(world.ranks) == [0, 1, 3]
    assert world.ranks[3].is_dead
    two.nodes[1].listen()
    two.begin(1)
    until(lambda: two.meet() and not world_of(two, 0).unreachable)
    two.wait_until_judges(True, False)
    messages = [record.getMessage() for record in caplog.records]
    assert len([text for text in messages if "node-2" in text and "does not answer" in text]) == 1
    assert "the agent on node-2 answers again" in messages


def test_agent_that_has_asked_before_it_was_announced(two: Agents) -> None:
    """The agent's ranks are known from its questions, even if the network is cut before it could be asked anything."""
    two.begin(0)
    two.nodes[1].begin(())
    two.set_suspicion(True)
    two.wait_until_judges(True, False)
    two.nodes[0].end()
    exchange = exchange_of(two, 1)
    exchange.renew(Peers(RUN, exchange.token, 2, HOST, two.others_of(1)))
    until(lambda: two.judges()[1] is True and world_of(two, 1).unreachable)
    assert dict(world_of(two, 1).unreachable) == {0: "node-0", 1: "node-0"}


def test_one_unanswered_question_is_no_loss(two: Agents) -> None:
    """An agent that misses a single question is not out of reach: its ranks stay as they were."""
    two.begin()
    two.set_suspicion(True)
    two.wait_until_judges(True, False)
    (them,) = exchange_of(two, 0).others
    assert not them.wake(timeout_s=0.0)
    assert not them.is_lost
    assert sorted(world_of(two, 0).ranks) == [0, 1, 2, 3]


def test_nothing_is_judged_in_doubt(two: Agents) -> None:
    """The second question decides whether an agent is out of reach; until then, and only so long, judging waits."""
    two.pace = dataclasses.replace(QUICK, hold_s=30.0)
    two.begin()
    two.set_suspicion(True)
    two.wait_until_judges(True, False)
    two.nodes[1].end()
    (them,) = exchange_of(two, 0).others
    until(lambda: them.unanswered > 0)
    judged_in_doubt = 0

    def look() -> bool:
        nonlocal judged_in_doubt
        before, role, after = them.is_in_doubt, two.nodes[0].meet(), them.is_in_doubt
        judged_in_doubt += before and after and isinstance(role, Leads)
        return them.is_lost

    until(look)
    assert not judged_in_doubt
    assert dict(world_of(two, 0).unreachable) == {2: "node-2", 3: "node-2"}


def test_impostor(two: Agents, caplog: pytest.LogCaptureFixture) -> None:
    """A process at an agent's address without the token counts as out of reach, and none of its data is used."""
    two.nodes[1].begin(two.others_of(1), token=b"x" * 32)
    two.begin(0)
    two.set_suspicion(True)
    until(lambda: two.meet() and "does not have the run's token" in caplog.text)
    assert sorted(world_of(two, 0).ranks) == [0, 1]
