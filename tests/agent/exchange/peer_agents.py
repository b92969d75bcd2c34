"""Agents of several nodes in one process, each with its own port."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator

from otel_torchdist.agent.exchange.client import new_instance
from otel_torchdist.agent.exchange.pace import ExchangePace
from otel_torchdist.agent.exchange.peers import ExchangeApp
from otel_torchdist.agent.exchange.run_exchange import RunExchange
from otel_torchdist.agent.exchange.steps import AnswerSteps, no_steps
from otel_torchdist.judge.stall.events import Follows, Leads, Role
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.node.job.peers import Peer, Peers
from otel_torchdist.show.serving.http_server import HttpServer
from tests.agent.exchange.listening import HOST, POLL_S
from tests.support.waiting import until
from tests.support.worlds.fake_world import RUN, FakeWorld

TOKEN = b"t" * 32
QUICK = ExchangePace(
    peaceful_round_s=0.5,
    hurried_round_s=0.05,
    wake_after_s=0.3,
    hurried_trust_s=1.0,
    wake_trust_s=0.7,
    lost_round_s=0.2,
)
"""Trust ends, and peace is interrupted, several times as soon as in production."""
RANKS_PER_NODE = 2


class Node:
    """A node with two ranks, and its agent.

    Attributes:
        agent_id: The lowest of its ranks.
        ranks: Its ranks.
        exchange: Its agent's exchange; None while the agent is dead.
        suspects_stall: Whether its agent suspects a stall.
        roles: What it learned each time it met the others.
        steps: Answers which calls its ranks made in some steps.
    """

    def __init__(self, peer_agents: Agents, number: int) -> None:
        self.agent_id = number * RANKS_PER_NODE
        self.ranks = tuple(range(self.agent_id, self.agent_id + RANKS_PER_NODE))
        self.exchange: RunExchange | None = None
        self.suspects_stall = False
        self.roles: list[Role] = []
        self.steps: AnswerSteps = no_steps
        self._agents = peer_agents
        self._port = 0
        self._server: HttpServer | None = None
        self._app = ExchangeApp("")
        self.listen()

    @property
    def peer(self) -> Peer:
        """Where the others find it."""
        return Peer(self.agent_id, f"node-{self.agent_id}", HOST, self._port, RANKS_PER_NODE)

    def listen(self) -> None:
        """Open its port, the previous one if it had any; nothing is answered yet."""
        self._instance = new_instance()
        self._app = ExchangeApp(self._instance)
        self._server = HttpServer(HOST, [self._port], "exchange", poll_s=POLL_S)
        self._port = self._server.port
        self._server.serve(self._app)

    def begin(self, others: tuple[Peer, ...], kind: type[RunExchange] = RunExchange, token: bytes = TOKEN) -> None:
        """Tell its agent of the others, and meet them."""
        peers = Peers(RUN, token, self.agent_id, HOST, others)
        self.exchange = kind(peers, self._instance, steps=self.steps, pace=self._agents.pace)
        self._app.add(RUN, self.exchange)

    def end(self) -> None:
        """End its agent, as if it died."""
        if self._server is not None:
            self._server.stop()
        if self.exchange is not None:
            self.exchange.stop()
            self.exchange.join()
        self._server = self.exchange = None

    def local(self) -> WorldSnapshot:
        """The snapshot that it takes by itself."""
        snapshot = self._agents.world.snapshot(self._agents.now_s, self.ranks)
        return dataclasses.replace(snapshot, looked_ns=time.monotonic_ns())

    def meet(self) -> Role | None:
        """Pass its snapshot to the exchange; None while its agent is dead."""
        if self.exchange is None:
            return None
        self.roles.append(self.exchange.meet(self.local(), self.suspects_stall))
        return self.roles[-1]


class Agents:
    """Nodes of one run, and the world of their ranks.

    Attributes:
        world: All ranks.
        now_s: The world's time.
        nodes: The nodes in the order of their ids.
        pace: The pace of agents that are started from now on.
    """

    def __init__(self, count: int) -> None:
        self.pace = QUICK
        self.world = FakeWorld(count * RANKS_PER_NODE)
        self.now_s = 10.0
        self.nodes = [Node(self, number) for number in range(count)]

    def begin(self, *numbers: int) -> None:
        """Start the agents of these nodes, all if none are named."""
        for number in numbers or range(len(self.nodes)):
            self.nodes[number].begin(self.others_of(number))

    def others_of(self, number: int) -> tuple[Peer, ...]:
        """The peers of a node: the agents of the other nodes."""
        return tuple(node.peer for node in self.nodes if node is not self.nodes[number])

    def set_suspicion(self, suspects_stall: bool, *numbers: int) -> None:
        """Let these nodes, or all, suspect a stall, or see that it is over."""
        for number in numbers or range(len(self.nodes)):
            self.nodes[number].suspects_stall = suspects_stall

    def meet(self) -> list[Role | None]:
        """Have all nodes meet, as each of their readers does many times a second."""
        return [node.meet() for node in self.nodes]

    def judges(self) -> list[bool | None]:
        """Whether each node judges now, as far as it knows; None if that is undecided, or the agent is dead."""
        found = {Leads: True, Follows: False}
        return [found.get(type(role)) for role in self.meet()]

    def wait_until_judges(self, *expected: bool | None, timeout_s: float = 15.0) -> None:
        """Wait until exactly the expected nodes judge, and each that does sees the ranks of all live agents."""
        seen = {rank for node in self.nodes if node.exchange is not None for rank in node.ranks}

        def is_so() -> bool:
            if self.judges() != list(expected):
                return False
            last = [node.roles[-1] for node in self.nodes if node.exchange is not None]
            return all(seen <= role.world.ranks.keys() for role in last if isinstance(role, Leads))

        until(is_so, timeout_s)


@contextlib.contextmanager
def agents(count: int) -> Iterator[Agents]:
    """Nodes whose agents are not started yet; all end with the block."""
    made = Agents(count)
    try:
        yield made
    finally:
        for node in made.nodes:
            node.end()


def world_of(agents: Agents, number: int) -> WorldSnapshot:
    """The snapshot of the agent that judges, as soon as it is in no doubt about any other."""
    until(lambda: isinstance(agents.nodes[number].meet(), Leads))
    role = agents.nodes[number].roles[-1]
    assert isinstance(role, Leads)
    return role.world


def exchange_of(agents: Agents, number: int) -> RunExchange:
    """The exchange of a live agent."""
    exchange = agents.nodes[number].exchange
    assert exchange is not None
    return exchange
