"""What the agent that judges passes on to the others: its rulings on a stall, and its requests for stacks."""

from __future__ import annotations

import dataclasses
import time

import pytest

from otel_torchdist.agent.exchange.peer import STATE_PATH
from otel_torchdist.agent.exchange.wire import Question, encode, wire_ruling
from otel_torchdist.judge.stall.events import Follows, Leads, Ruling, StacksOverdue, StacksWanted
from otel_torchdist.model.calls import Channel, OperationId
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.reports.incident import Incident
from otel_torchdist.model.snapshot import WorldSnapshot
from tests.agent.exchange.peer_agents import QUICK, Agents, exchange_of
from tests.support.waiting import until
from tests.support.worlds.fake_world import RUN, SECOND, START_NS, group_of

EVERYBODY = group_of(0, 1, 2, 3)
OFF_NS = START_NS + 6 * SECOND
SITE = OperationId(Channel(RecordKind.OPERATION, EVERYBODY.key), 2)


def ruling(epoch: int = 1, agent_id: int = 0) -> Ruling:
    """A ruling on a stall."""
    return Ruling(Incident(RUN, "name", agent_id), epoch, SITE, f"said {epoch} times", {"epoch": epoch})


def test_ruling_reaches_all(three: Agents) -> None:
    """A ruling on a stall, each update, and that it is over reach both followers."""
    three.begin()
    three.set_suspicion(True)
    three.wait_until_judges(True, False, False)
    for said in (ruling(1), ruling(2), None):
        exchange_of(three, 0).publish(said)
        until(lambda said=said: three.meet()[1:] == [Follows(said, True)] * 2)


def test_ruling_that_is_over_at_once_reaches_all(three: Agents) -> None:
    """The ruling on a death is over as soon as all ranks have ended; the others get it, and then that it is over."""
    three.begin()
    three.set_suspicion(True)
    three.wait_until_judges(True, False, False)
    exchange_of(three, 0).publish(ruling(1))
    exchange_of(three, 0).publish(None)
    until(lambda: three.meet()[1] == Follows(ruling(1), True))
    until(lambda: three.meet()[1:] == [Follows(None, True)] * 2)


@pytest.mark.parametrize("off", [0, 2])
def test_switch_reaches_all(three: Agents, off: int) -> None:
    """If one node is switched off, the judging one or another, all learn when, and know it once that agent is dead."""
    three.begin()
    three.wait_until_judges(True, False, False)
    node, local = three.nodes[off], three.nodes[off].local

    def switched_off() -> WorldSnapshot:
        world = local()
        views = {rank: dataclasses.replace(view, switched_off_ns=OFF_NS) for rank, view in world.ranks.items()}
        return dataclasses.replace(world, ranks=views)

    node.local = switched_off  # pyright: ignore[reportAttributeAccessIssue]
    at_wall_ns = switched_off().switched_off_wall_ns
    until(lambda: {role.off_wall_ns for role in three.meet() if isinstance(role, Leads | Follows)} == {at_wall_ns})
    node.end()
    others = [node for node in three.nodes if node.exchange is not None]
    assert [role.off_wall_ns for node in others if isinstance(role := node.meet(), Leads | Follows)]
    three.nodes[1].end()
    three.nodes[1].listen()
    three.begin(1)  # a new agent, which has seen nothing of it
    until(lambda: getattr(three.nodes[1].meet(), "off_wall_ns", 0) == at_wall_ns)


def test_ruling_that_is_over_before_it_is_read(two: Agents) -> None:
    """A follower is shown a ruling made between two turns, and only then that it is over."""
    two.begin(1)
    for said in (wire_ruling(ruling(1)), None):
        exchange_of(two, 1).respond(STATE_PATH, encode(Question(0, is_hurried=True, ruling=said)))
    assert [two.nodes[1].meet() for _ in range(2)] == [Follows(ruling(1), True), Follows(None, True)]


def test_earlier_ruling_is_not_repeated(three: Agents) -> None:
    """An agent that has followed in between does not repeat its former ruling on the stall."""
    three.begin(1, 2)
    three.set_suspicion(True)
    three.wait_until_judges(None, True, False)
    exchange_of(three, 1).publish(ruling(1, agent_id=2))
    until(lambda: three.meet()[2] == Follows(ruling(1, agent_id=2), True))
    exchange_of(three, 1).respond(STATE_PATH, encode(Question(0, is_hurried=True)))
    exchange_of(three, 2).respond(STATE_PATH, encode(Question(0, is_hurried=True)))
    assert three.judges() == [None, False, False]
    three.nodes[2].roles.clear()
    three.wait_until_judges(None, True, False)
    received = [role.ruling for role in three.nodes[2].roles if isinstance(role, Follows)]
    assert received
    assert set(received) == {None}


def test_wishes_for_stacks_arrive_once(three: Agents) -> None:
    """Each agent gets the requests for stacks of its own ranks, with the way to take them, and only once."""
    three.pace = dataclasses.replace(QUICK, hurried_timeout_s=5.0)  # a question that is too late is repeated
    three.begin()
    three.set_suspicion(True)
    three.wait_until_judges(True, False, False)
    exchange_of(three, 0).request_stacks(StacksWanted(frozenset({0x1000, 0x1002, 0x1003, 0x1004, 0x9999})))
    exchange_of(three, 0).request_stacks(StacksOverdue(frozenset({0x1002})))
    received: dict[int, list[StacksWanted | StacksOverdue]] = {1: [], 2: []}

    def collect() -> dict[int, list[StacksWanted | StacksOverdue]]:
        three.meet()
        for number, wishes in received.items():
            wishes += exchange_of(three, number).requested_stacks()
        return received

    expected = {
        1: [StacksWanted(frozenset({0x1002, 0x1003})), StacksOverdue(frozenset({0x1002}))],
        2: [StacksWanted(frozenset({0x1004}))],
    }
    until(lambda: collect() == expected)
    then = time.monotonic() + 8 * QUICK.hurried_round_s
    while time.monotonic() < then:
        assert collect() == expected
        time.sleep(0.02)
    assert exchange_of(three, 0).requested_stacks() == []
