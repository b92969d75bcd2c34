"""What an agent does with the files in which ranks of its node list the agents of other nodes."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.agent.exchange.client import NoAnswerError, PeerClient, new_instance
from otel_torchdist.agent.exchange.peer import STATE_PATH
from otel_torchdist.agent.exchange.peers import UNSEEN_S, PeerExchanges
from otel_torchdist.agent.exchange.wire import Question, decode_answer, encode
from otel_torchdist.judge.stall.events import Leads
from otel_torchdist.node.job.peers import PORT_FILE, TOKEN_BYTES, Peer, Peers, read_listening, write_peers
from tests.agent.exchange.listening import HOST, peer_at, stranger
from tests.agent.exchange.peer_agents import QUICK
from tests.node.job.announced import PEERS, TOKEN, file_of
from tests.support.waiting import until
from tests.support.worlds.fake_world import RUN, FakeWorld


@pytest.fixture
def now_s() -> list[float]:
    """The time of the agent, which the test moves."""
    return [100.0]


@pytest.fixture
def agent_peers(now_s: list[float]) -> Iterator[PeerExchanges]:
    """Peers of an agent that searches as often as it is asked to."""
    made = PeerExchanges(pace=dataclasses.replace(QUICK, peaceful_round_s=0.05), search_s=0.0, clock=lambda: now_s[0])
    yield made
    made.stop()


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings so far."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def ask(port: int, run: int = RUN, token: bytes = TOKEN) -> tuple[int, ...]:
    """The ranks that the agent on a port reports to see."""
    client = PeerClient(peer_at(port), run, token, new_instance())
    return tuple(rank.view.rank for rank in decode_answer(client.ask(STATE_PATH, encode(Question(9)), 10).body).ranks)


def test_agent_takes_in_a_file(agent_peers: PeerExchanges, tmp_path: Path) -> None:
    """The agent listens where the rank asks it to, writes its port down, and answers clients with the run's token."""
    agent_peers.search([tmp_path])
    assert os.listdir(tmp_path) == []
    write_peers(tmp_path, dataclasses.replace(PEERS, others=()))
    agent_peers.search([tmp_path])
    place = read_listening(tmp_path)
    assert place is not None and (place.host, place.runs) == (HOST, {RUN})
    assert stat.S_IMODE((tmp_path / PORT_FILE).stat().st_mode) == 0o600
    assert ask(place.port) == ()
    world = FakeWorld(2).snapshot(1.0)
    assert agent_peers.meet(world, suspects_stall=False) == Leads(world, 0)
    assert ask(place.port) == (0, 1)
    with pytest.raises(NoAnswerError, match="token"):
        ask(place.port, token=b"x" * TOKEN_BYTES)


def test_run_on_one_node(agent_peers: PeerExchanges) -> None:
    """An agent judges a run without a file by itself; its rulings and requests go nowhere."""
    world = FakeWorld(2).snapshot(1.0)
    role = agent_peers.meet(world, suspects_stall=True)
    assert isinstance(role, Leads)
    assert role.world is world
    agent_peers.publish(RUN, None)
    assert agent_peers.requested_stacks() == []


def test_two_agents_find_each_other(agent_peers: PeerExchanges, tmp_path: Path) -> None:
    """Each node's file names the other agent: the lower id soon judges with the ranks of both."""
    there = PeerExchanges(pace=QUICK, search_s=0.0)
    directories = [tmp_path / "a", tmp_path / "b"]
    world = FakeWorld(4)
    here_sees, there_sees = world.snapshot(1.0, (0, 1)), world.snapshot(1.0, (2, 3))
    try:
        for agent, directory, agent_id in zip((agent_peers, there), directories, (0, 2), strict=True):
            directory.mkdir()
            write_peers(directory, Peers(RUN, TOKEN, agent_id, HOST))
            agent.search([directory])
        ports = [place.port for directory in directories if (place := read_listening(directory))]
        for agent, directory, agent_id, other in ((agent_peers, 0, 0, 1), (there, 1, 2, 0)):
            peer = Peer(2 - agent_id, f"node-{other}", HOST, ports[other], 2)
            write_peers(directories[directory], Peers(RUN, TOKEN, agent_id, HOST, (peer,)))
            agent.search([directories[directory]])

        def is_complete() -> bool:
            there.meet(there_sees, True)
            role = agent_peers.meet(here_sees, True)
            return isinstance(role, Leads) and sorted(role.world.ranks) == [0, 1, 2, 3]

        until(is_complete)
    finally:
        there.stop()


def test_port_is_kept(agent_peers: PeerExchanges, tmp_path: Path) -> None:
    """An agent that replaces a dead one listens on the announced port; if that is taken, elsewhere."""
    write_peers(tmp_path, PEERS)
    agent_peers.search([tmp_path])
    first = read_listening(tmp_path)
    said = (tmp_path / PORT_FILE).read_bytes()
    agent_peers.stop()
    assert read_listening(tmp_path) is None  # an agent that is stopped cleanly removes its port file
    (tmp_path / PORT_FILE).write_bytes(said)  # a killed one does not
    second = PeerExchanges()
    second.search([tmp_path])
    third = PeerExchanges()
    try:
        assert read_listening(tmp_path) == first
        third.search([tmp_path])
        assert read_listening(tmp_path) not in (first, None)
    finally:
        second.stop()
        third.stop()


def test_one_port_for_all_runs(agent_peers: PeerExchanges, tmp_path: Path) -> None:
    """Runs of several job directories on one address share a port, each under its own token."""
    directories = [tmp_path / "a", tmp_path / "b"]
    for run, directory in enumerate(directories, 1):
        directory.mkdir()
        write_peers(directory, Peers(run, bytes([run]) * TOKEN_BYTES, 0, HOST))
    agent_peers.search(directories)
    (port,) = {place.port for directory in directories if (place := read_listening(directory))}
    for run in (1, 2):
        assert ask(port, run, bytes([run]) * TOKEN_BYTES) == ()
        with pytest.raises(NoAnswerError):
            ask(port, run, bytes([3 - run]) * TOKEN_BYTES)


@pytest.mark.parametrize("host", ["203.0.113.7", "x" * 70, "a b"])
def test_address_that_is_not_here(
    host: str, agent_peers: PeerExchanges, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An address that cannot be bound is one warning, however often the agent searches; the run is judged alone."""
    write_peers(tmp_path, dataclasses.replace(PEERS, own_host=host))
    for _ in range(5):
        agent_peers.search([tmp_path])
    (warning,) = warnings_in(caplog)
    assert "no data is exchanged with agents of other nodes" in warning
    assert read_listening(tmp_path) is None
    assert isinstance(agent_peers.meet(FakeWorld(2).snapshot(1.0), True), Leads)


def test_file_that_cannot_be_used(agent_peers: PeerExchanges, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Such a file is one warning that names it; once a good one replaces it, everything works."""
    file_of(tmp_path).write_text("[" * 200_000)
    for _ in range(5):
        agent_peers.search([tmp_path])
    (warning,) = warnings_in(caplog)
    assert warning.startswith(f"{file_of(tmp_path)}: ")
    write_peers(tmp_path, PEERS)
    for _ in range(5):
        agent_peers.search([tmp_path])
    assert read_listening(tmp_path) is not None
    assert len(warnings_in(caplog)) == 1


def test_search_is_rare(now_s: list[float], tmp_path: Path) -> None:
    """However many turns the agent makes, it searches for files at most twice a second."""
    agent_peers = PeerExchanges(clock=lambda: now_s[0])
    agent_peers.search([tmp_path])
    write_peers(tmp_path, PEERS)
    try:
        for moment_s, is_found in ((100.0, False), (100.49, False), (100.5, True)):
            now_s[0] = moment_s
            agent_peers.search([tmp_path])
            assert (read_listening(tmp_path) is not None) == is_found
    finally:
        agent_peers.stop()


def test_runs_that_are_over_are_left(agent_peers: PeerExchanges, tmp_path: Path, now_s: list[float]) -> None:
    """A run without ranks is dropped and its questions are refused; another one on the same port is still answered."""
    write_peers(tmp_path, Peers(RUN, TOKEN, 0, HOST))
    write_peers(tmp_path, Peers(RUN + 1, TOKEN, 0, HOST))
    agent_peers.search([tmp_path])
    place = read_listening(tmp_path)
    assert place is not None
    assert (ask(place.port), ask(place.port, RUN + 1)) == ((), ())
    world = FakeWorld(1).snapshot(1.0)
    for _ in range(2):
        assert ask(place.port) == ()
        now_s[0] += 0.6 * UNSEEN_S
        agent_peers.meet(dataclasses.replace(world, run=RUN + 1), False)
        agent_peers.search([tmp_path])
    with pytest.raises(NoAnswerError, match="status 403"):
        ask(place.port)
    assert ask(place.port, RUN + 1) == (0,)


def test_to_leave_a_run_takes_no_time(agent_peers: PeerExchanges, tmp_path: Path, now_s: list[float]) -> None:
    """The reader of tapes is not delayed by an agent that never answers a question in flight."""
    gate, asked = threading.Event(), threading.Event()

    def silent(connection: socket.socket) -> None:
        asked.set()
        gate.wait(30)

    with stranger(silent) as port:
        write_peers(tmp_path, Peers(RUN, TOKEN, 0, HOST, (peer_at(port, 4),)))
        agent_peers.search([tmp_path])
        agent_peers.meet(FakeWorld(2).snapshot(1.0), suspects_stall=False)
        assert asked.wait(10)
        place = read_listening(tmp_path)
        assert place is not None
        now_s[0] += UNSEEN_S + 1
        began = time.monotonic()
        agent_peers.search([tmp_path])
        assert time.monotonic() - began < QUICK.peaceful_timeout_s / 2
        with pytest.raises(NoAnswerError, match="status 403"):
            ask(place.port)
        gate.set()
