"""Agents of a job's nodes find each other through the job's real store, and through nothing else."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]  # as torch's manual has it

from otel_torchdist.agent.neighbours import Neighbours
from otel_torchdist.capture import meeting as meeting_module
from otel_torchdist.capture import run_id
from otel_torchdist.capture.meeting import Meeting, Place, _key
from otel_torchdist.capture.run_id import RunIdAgreement
from otel_torchdist.tape.layout import RunIdState
from otel_torchdist.tape.peers import PORT_FILE, ListeningAgent, Peers, peers_files, read_listening, read_peers
from otel_torchdist.tape.reader import TapeReader
from tests.tape.tapes import RankProcess, new_writer, until

HOST = "127.0.0.1"
RUN = 0xFEED
LOCAL = 2
"""Ranks on each node."""


@pytest.fixture(autouse=True)
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look more often than in life."""
    monkeypatch.setattr(meeting_module, "FIRST_LOOK_S", 0.01)
    monkeypatch.setattr(meeting_module, "LONGEST_LOOK_S", 0.05)


@pytest.fixture
def store() -> Any:
    """The job's store; ranks have clones of it."""
    return TCPStore(HOST, 0, is_master=True, wait_for_workers=False)


@dataclass
class Rank:
    """A rank that meets, on a thread as in life.

    Attributes:
        rank: Its number.
        directory: Its node's job directory.
        world_size: Ranks of the run.
        local: What the launcher says of the ranks on its node.
        stopping: Ends it.
        errors: What came of it, if anything did.
    """

    rank: int
    directory: Path
    world_size: int
    local: str = str(LOCAL)
    stopping: threading.Event = field(default_factory=threading.Event)
    errors: list[Exception] = field(default_factory=list[Exception])

    def meeting(self) -> Meeting:
        """Its part of the meeting."""
        place = Place(self.rank, self.world_size, self.directory / f"rank-{self.rank}.tape", HOST)
        return Meeting(place, self.stopping, {"LOCAL_WORLD_SIZE": self.local} if self.local else {})

    def hold(self, store: Any) -> threading.Thread:
        """Begin to meet."""
        clone, meeting = store.clone(), self.meeting()

        def hold() -> None:
            try:
                meeting.hold(clone, RUN)
            except Exception as error:
                self.errors.append(error)

        thread = threading.Thread(target=hold)
        thread.start()
        return thread


def ranks_of(base: Path, nodes: int, local: str = str(LOCAL)) -> list[Rank]:
    """The ranks of a job, each node with a job directory of its own."""
    made: list[Rank] = []
    for rank in range(nodes * LOCAL):
        directory = base / f"node-{rank // LOCAL}"
        directory.mkdir(exist_ok=True)
        made.append(Rank(rank, directory, nodes * LOCAL, local))
    return made


def say_port(directory: Path, port: int = 4711, host: str = HOST) -> None:
    """Say what an agent says."""
    (directory / PORT_FILE).write_text(ListeningAgent(host, port, frozenset({RUN, *peers_files(directory)})).to_json())


def peers_in(directory: Path) -> Peers:
    """What a rank has written for its node's agent."""
    ((path, _),) = peers_files(directory).values()
    return read_peers(path)


def announced(store: Any, run: int = RUN) -> int:
    """How many have announced an agent."""
    return store.add(_key(run, "count"), 0)


@contextlib.contextmanager
def meeting_of(ranks: list[Rank], store: Any) -> Iterator[list[threading.Thread]]:
    """Let ranks meet, and end them with the block."""
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
    """Each node's agent learns where the other two really listen, under one token, announced by one rank of each."""
    ranks = ranks_of(tmp_path, 3)
    directories = sorted({rank.directory for rank in ranks})
    agents = [Neighbours() for _ in directories]
    try:
        with meeting_of(ranks, store) as threads:

            def is_over() -> bool:
                for agent, directory in zip(agents, directories, strict=True):
                    agent._searched_at = float("-inf")
                    agent.search([directory])
                return not any(thread.is_alive() for thread in threads)

            assert until(is_over)
            assert announced(store) == 3
            heard = [read_listening(directory) for directory in directories]
    finally:
        for agent in agents:
            agent.stop()
    assert [rank.errors for rank in ranks] == [[]] * 6
    found = [peers_in(directory) for directory in directories]
    assert [peers.own_seat // LOCAL for peers in found] == [0, 1, 2]
    assert len({peers.token for peers in found}) == 1
    places = {
        peers.own_seat: (agent.host, agent.port) for peers, agent in zip(found, heard, strict=True) if agent is not None
    }
    for peers in found:
        others = {other.seat: (other.host, other.port) for other in peers.others}
        assert others == {seat: place for seat, place in places.items() if seat != peers.own_seat}
        assert {other.ranks for other in peers.others} == {LOCAL}


def test_one_rank_of_a_node_announces(store: Any, tmp_path: Path) -> None:
    """Of the ranks of a node only the first writes; the others have nothing more to do with it."""
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
    """Where the launcher says that all ranks are here, neither store nor directory gets anything."""
    ranks = ranks_of(tmp_path, 1, local)
    keys = store.num_keys()
    with meeting_of(ranks, store) as threads:
        for thread in threads:
            thread.join(10)
    assert store.num_keys() == keys
    assert list(ranks[0].directory.iterdir()) == []
    assert [rank.errors for rank in ranks] == [[], []]


@pytest.mark.parametrize("local", ["", "two", "-1"])
def test_launcher_that_says_nothing(local: str, store: Any, tmp_path: Path) -> None:
    """Then the tapes tell: if as many are written here as there are ranks, nothing is announced; else it is."""
    for world_size in (2, 3):
        directory = tmp_path / str(world_size)
        directory.mkdir()
        own = Rank(0, directory, world_size, local)
        (directory / "rank-0.tape").touch()
        (directory / "left-over.tape").touch()
        with RankProcess(directory), meeting_of([own], store) as threads:
            if world_size == 2:
                threads[0].join(10)
                assert peers_files(directory) == {}
            else:
                assert until(lambda directory=directory: len(peers_files(directory)) == 1)
                say_port(directory)
                assert until(lambda: announced(store) == 1)
        assert own.errors == []


def test_agent_that_never_says_its_port(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given some time, told where to listen, and not announced; a port on another address is not its."""
    monkeypatch.setattr(meeting_module, "AGENT_DUE_S", 0.3)
    (rank, *_) = ranks_of(tmp_path, 2)
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
    """Whatever it waits for, it ends at once when its rank does, without a word."""
    (rank, *_) = ranks_of(tmp_path, 2)
    with meeting_of([rank], store) as (thread,):
        assert until(lambda: is_waiting(rank, store))
        rank.stopping.set()
        began = time.monotonic()
        thread.join(10)
        assert not thread.is_alive()
        assert time.monotonic() - began < 2
    assert rank.errors == []


def test_meeting_ends_by_itself(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that never come are not waited for until the job ends; what was found stays written."""
    monkeypatch.setattr(meeting_module, "MEETING_S", 0.5)
    ranks = ranks_of(tmp_path, 3)
    for rank in (ranks[0], ranks[2]):
        say_port(rank.directory, 4711 + rank.rank)
    with meeting_of([ranks[0], ranks[2]], store) as threads:
        assert until(lambda: not any(thread.is_alive() for thread in threads))
    assert [peer.seat for peer in peers_in(ranks[0].directory).others] == [2]


def test_rank_0_takes_no_part(store: Any, tmp_path: Path) -> None:
    """Without the token, which comes before the run's id or never, nobody waits for it, and nothing is written."""
    (rank, *_) = ranks_of(tmp_path, 2)
    began = time.monotonic()
    thread = rank.hold(store)
    thread.join(10)
    assert time.monotonic() - began < 5
    assert rank.errors == []
    assert peers_files(rank.directory) == {}


def test_more_nodes_than_may_be(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nodes beyond the bound say so once, keep to themselves, and are not found by the others."""
    monkeypatch.setattr(meeting_module, "MAX_PEERS", 2)
    monkeypatch.setattr(meeting_module, "MEETING_S", 0.5)
    caplog.set_level(logging.INFO, "otel_torchdist")
    ranks = ranks_of(tmp_path, 3)[::LOCAL]
    for rank in ranks:
        say_port(rank.directory)
    with meeting_of(ranks, store) as threads:
        assert until(lambda: not any(thread.is_alive() for thread in threads))
    assert sorted(len(peers_in(rank.directory).others) for rank in ranks) == [0, 1, 1]
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "first 2 nodes" in caplog.text


# --- as a part of the agreement on the run's id -------------------------------------------------------------------


@contextlib.contextmanager
def agreeing(store: Any, directory: Path) -> Iterator[tuple[RunIdAgreement, Path]]:
    """Rank 0 of two nodes, as a session starts it; its tape."""
    tape = new_writer(directory, rank=0)
    place = Place(0, 4, tape.path, HOST)
    agreement = RunIdAgreement(
        SimpleNamespace(tape=tape),  # type: ignore[arg-type]  # of a recorder it takes the tape
        store,
        lambda: True,
        lambda stopping: Meeting(place, stopping, {"LOCAL_WORLD_SIZE": "2"}),
    )
    try:
        yield agreement, tape.path
    finally:
        agreement.stop()
        tape.close()


def test_store_that_dies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The host of the store ends while nodes are looked for: one warning, no exception, and the run id stays."""
    hosts: list[Any] = [TCPStore(HOST, 0, is_master=True, wait_for_workers=False)]
    client = TCPStore(HOST, hosts[0].port, is_master=False)
    with agreeing(client, tmp_path) as (agreement, tape):
        assert until(lambda: len(peers_files(tmp_path)) == 1)
        say_port(tmp_path)
        assert until(lambda: announced(client, next(iter(peers_files(tmp_path)))) == 1)
        hosts.clear()
        assert until(lambda: not agreement._thread.is_alive())
        warnings = [record.getMessage() for record in caplog.records if record.name == "otel_torchdist"]
        assert len(warnings) == 1
        assert warnings[0].startswith("the agents of this job's nodes cannot find each other: ")
        reader = TapeReader.of_writer(agreement._tape)
        reader.poll()
        assert reader.status().run_id_state is RunIdState.AGREED
        assert tape.exists()


def test_something_else_in_the_store(store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A value that is no agent is one warning, and ends the meeting."""
    with agreeing(store, tmp_path) as (agreement, _):
        assert until(lambda: len(peers_files(tmp_path)) == 1)
        (run,) = peers_files(tmp_path)
        store.set(_key(run, "1"), "[1, 2]")
        store.add(_key(run, "count"), 1)
        say_port(tmp_path)
        assert until(lambda: not agreement._thread.is_alive())
    assert [record.levelname for record in caplog.records if record.name == "otel_torchdist"] == ["WARNING"]
    assert "it is no peer" in caplog.text


def test_rank_that_ends_meanwhile(store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A rank that ends while it waits for its agent is not held up, and says nothing."""
    with agreeing(store, tmp_path) as (agreement, _):
        assert until(lambda: len(peers_files(tmp_path)) == 1)
        began = time.monotonic()
        agreement.stop()
        assert time.monotonic() - began < run_id.STOP_S
        assert not agreement._thread.is_alive()
    assert caplog.records == []


def test_directory_that_is_gone(store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A job directory that cannot be written to is one warning, and the run id is agreed all the same."""
    directory = tmp_path / "job"
    directory.mkdir()
    tape = new_writer(directory, rank=0)
    place = Place(0, 4, tmp_path / "gone" / "rank-0.tape", HOST)
    recorder: Any = SimpleNamespace(tape=tape)
    agreement = RunIdAgreement(
        recorder, store, lambda: True, lambda stopping: Meeting(place, stopping, {"LOCAL_WORLD_SIZE": "2"})
    )
    assert until(lambda: not agreement._thread.is_alive())
    agreement.stop()
    tape.close()
    (record,) = caplog.records
    assert (record.levelname, "gone" in record.getMessage()) == ("WARNING", True)
