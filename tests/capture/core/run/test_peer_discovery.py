"""Agents of a job's nodes discover each other through the job's real store only."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch.testing._internal.distributed.fake_pg import FakeStore

from otel_torchdist.agent.exchange.peers import PeerExchanges
from otel_torchdist.capture.core.run.peer_discovery import DiscoveryBounds, PeerDiscovery, RankAddress, store_key
from otel_torchdist.node.job.peers import peers_files, read_listening, read_peers
from tests.capture.core.run.announcements import HOST, LOCAL, QUICK, RUN, announced, peers_in, say_port
from tests.support.tapes.tapes import WriterProcess
from tests.support.waiting import until


@dataclass
class Rank:
    """A rank that takes part in peer discovery, on a thread as in production.

    Attributes:
        rank: Its number.
        directory: Its node's job directory.
        world_size: Ranks of the run.
        local: The number of ranks on its node according to the launcher.
        bounds: Limits on its discovery.
        stopping: Ends it.
        errors: Errors that it raised, if any.
    """

    rank: int
    directory: Path
    world_size: int
    local: str = str(LOCAL)
    bounds: DiscoveryBounds = QUICK
    stopping: threading.Event = field(default_factory=threading.Event)
    errors: list[Exception] = field(default_factory=list[Exception])

    def meeting(self) -> PeerDiscovery:
        """Its part of the discovery."""
        place = RankAddress(self.rank, self.world_size, self.directory / f"rank-{self.rank}.tape", HOST)
        environ = {"LOCAL_WORLD_SIZE": self.local} if self.local else {}
        return PeerDiscovery(place, self.stopping, environ, self.bounds)

    def hold(self, store: Any) -> threading.Thread:
        """Start the discovery."""
        clone, meeting = store.clone(), self.meeting()

        def hold() -> None:
            try:
                meeting.discover(clone, RUN)
            except Exception as error:
                self.errors.append(error)

        thread = threading.Thread(target=hold)
        thread.start()
        return thread


def ranks_of(base: Path, nodes: int, local: str = str(LOCAL), **bounds: Any) -> list[Rank]:
    """Ranks of a job, each node with its own job directory."""
    made: list[Rank] = []
    for rank in range(nodes * LOCAL):
        directory = base / f"node-{rank // LOCAL}"
        directory.mkdir(exist_ok=True)
        made.append(Rank(rank, directory, nodes * LOCAL, local, QUICK._replace(**bounds)))
    return made


@contextlib.contextmanager
def meeting_of(ranks: list[Rank], store: Any) -> Iterator[list[threading.Thread]]:
    """Let ranks discover each other, and stop them with the block."""
    ranks[0].meeting().prepare(store.clone(), RUN)
    threads = [rank.hold(store) for rank in ranks]
    try:
        yield threads
    finally:
        for rank in ranks:
            rank.stopping.set()
        for thread in threads:
            thread.join(10)


def test_three_nodes_find_each_other(store: Any, tmp_path: Path) -> None:
    """Each of three agents learns the listening addresses of the others, with one token.

    One rank per node announces.
    """
    ranks = ranks_of(tmp_path, 3)
    directories = sorted({rank.directory for rank in ranks})
    agents = [PeerExchanges() for _ in directories]
    try:
        with meeting_of(ranks, store) as threads:

            def is_over() -> bool:
                for agent, directory in zip(agents, directories, strict=True):
                    agent.search([directory])
                return not any(thread.is_alive() for thread in threads)

            assert until(is_over)
            assert announced(store) == 3
            received = [read_listening(directory) for directory in directories]
    finally:
        for agent in agents:
            agent.stop()
    assert [rank.errors for rank in ranks] == [[]] * 6
    found = [peers_in(directory) for directory in directories]
    assert [peers.own_id // LOCAL for peers in found] == [0, 1, 2]
    assert len({peers.token for peers in found}) == 1
    places = {
        peers.own_id: (agent.host, agent.port)
        for peers, agent in zip(found, received, strict=True)
        if agent is not None
    }
    for peers in found:
        others = {other.agent_id: (other.host, other.port) for other in peers.others}
        assert others == {agent_id: place for agent_id, place in places.items() if agent_id != peers.own_id}
        assert {other.ranks for other in peers.others} == {LOCAL}


def test_one_rank_of_a_node_announces(store: Any, tmp_path: Path) -> None:
    """Only the first rank of a node writes to the store. The other ranks return immediately."""
    ranks = ranks_of(tmp_path, 2)
    say_port(ranks[0].directory)
    with meeting_of(ranks, store) as threads:
        assert until(lambda: announced(store) == 1)
        assert until(lambda: [thread.is_alive() for thread in threads].count(True) == 2)
        assert len(peers_files(ranks[0].directory)) == 1
        assert peers_in(ranks[0].directory).others == ()
        say_port(ranks[2].directory, 4712)
        assert until(lambda: not any(thread.is_alive() for thread in threads))
    assert [peer.port for peer in peers_in(ranks[0].directory).others] == [4712]
    assert [peer.port for peer in peers_in(ranks[2].directory).others] == [4711]


@pytest.mark.parametrize("local", ["2", "3"])
def test_job_on_one_node(local: str, store: Any, tmp_path: Path) -> None:
    """If the launcher says that all ranks are on this node, nothing is written to the store or directory."""
    ranks = ranks_of(tmp_path, 1, local)
    keys = store.num_keys()
    with meeting_of(ranks, store) as threads:
        for thread in threads:
            thread.join(10)
    assert store.num_keys() == keys
    assert list(ranks[0].directory.iterdir()) == []
    assert [rank.errors for rank in ranks] == [[], []]


@pytest.mark.parametrize("local", ["", "two", "-1"])
def test_launcher_that_states_nothing(local: str, store: Any, tmp_path: Path) -> None:
    """Without the launcher's count, the number of live tapes decides whether the job has other nodes."""
    for world_size in (2, 3):
        directory = tmp_path / str(world_size)
        directory.mkdir()
        own = Rank(0, directory, world_size, local)
        (directory / "rank-0.tape").touch()
        (directory / "left-over.tape").touch()
        with WriterProcess(directory), meeting_of([own], store) as threads:
            if world_size == 2:
                threads[0].join(10)
                assert peers_files(directory) == {}
            else:
                assert until(lambda directory=directory: len(peers_files(directory)) == 1)
                say_port(directory)
                assert until(lambda: announced(store) == 1)
        assert own.errors == []


def test_agent_that_never_publishes_its_port(store: Any, tmp_path: Path) -> None:
    """An agent that publishes no port within the timeout is not announced. Another agent's port is not used."""
    (rank, *_) = ranks_of(tmp_path, 2, agent_due_s=0.3)
    say_port(rank.directory, host="10.0.0.1")
    began = time.monotonic()
    with meeting_of([rank], store) as (thread,):
        thread.join(10)
        assert not thread.is_alive()
    assert time.monotonic() - began >= 0.3
    assert peers_in(rank.directory).own_host == HOST
    assert announced(store) == 0


def _waits_for_agent(rank: Rank, store: Any) -> bool:
    return bool(peers_files(rank.directory))


def _waits_for_others(rank: Rank, store: Any) -> bool:
    say_port(rank.directory)
    return announced(store) == 1


@pytest.mark.parametrize("is_waiting", [_waits_for_agent, _waits_for_others])
def test_stop(is_waiting: Callable[[Rank, Any], bool], store: Any, tmp_path: Path) -> None:
    """The discovery ends immediately when its rank ends, and logs no error."""
    (rank, *_) = ranks_of(tmp_path, 2)
    with meeting_of([rank], store) as (thread,):
        assert until(lambda: is_waiting(rank, store))
        rank.stopping.set()
        thread.join(10)
        assert not thread.is_alive()
    assert rank.errors == []


def test_meeting_ends_by_itself(store: Any, tmp_path: Path) -> None:
    """The search for missing nodes ends after a timeout. Discovered agents stay written."""
    ranks = ranks_of(tmp_path, 3, discovery_s=0.5)
    for rank in (ranks[0], ranks[2]):
        say_port(rank.directory, 4711 + rank.rank)
    with meeting_of([ranks[2]], store) as threads:
        assert until(lambda: store.check([store_key(RUN, "1")]))
        threads.append(ranks[0].hold(store))
        assert until(lambda: not any(thread.is_alive() for thread in threads))
    assert [peer.agent_id for peer in peers_in(ranks[0].directory).others] == [2]


def test_rank_0_takes_no_part(store: Any, tmp_path: Path) -> None:
    """Without a token in the store, nothing is waited for or written: rank 0 sets it before the run id, or never."""
    (rank, *_) = ranks_of(tmp_path, 2)
    thread = rank.hold(store)
    thread.join(10)
    assert not thread.is_alive()
    assert rank.errors == []
    assert peers_files(rank.directory) == {}


def test_store_that_keeps_nothing(tmp_path: Path) -> None:
    """The `fake` backend's store claims to have every key. No agent gets an invalid token from it."""
    store, (rank, *_) = FakeStore(), ranks_of(tmp_path, 2)
    try:
        store.check(["key"])
    except RuntimeError:
        pytest.skip("before torch 2.15 it refuses every question")
    with meeting_of([rank], store) as (thread,):
        thread.join(10)
        assert not thread.is_alive()
    assert rank.errors == []
    assert peers_files(rank.directory) == {}


def test_more_nodes_than_may_be(store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each node beyond the maximum logs it once, and neither finds other agents nor is found."""
    caplog.set_level(logging.INFO, "otel_torchdist")
    ranks = ranks_of(tmp_path, 3, max_peers=2)[::LOCAL]
    for rank in ranks:
        say_port(rank.directory)

    def others() -> list[int]:
        files = [path for rank in ranks for path, _ in peers_files(rank.directory).values()]
        return sorted(len(read_peers(path).others) for path in files)

    with meeting_of(ranks, store) as threads:
        assert until(lambda: others() == [0, 1, 1])
        assert until(lambda: [thread.is_alive() for thread in threads].count(True) == 2)
    assert others() == [0, 1, 1]
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "first 2 nodes" in caplog.text
