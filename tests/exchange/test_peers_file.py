"""The files by which a rank and its node's agent say where agents are, and what the agent makes of them."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_torchdist.agent import neighbours as neighbours_module
from otel_torchdist.agent.neighbours import Neighbours
from otel_torchdist.exchange import run_exchange
from otel_torchdist.exchange.client import Line, NoAnswerError
from otel_torchdist.exchange.envelope import new_life
from otel_torchdist.exchange.other import STATE_PATH
from otel_torchdist.exchange.wire import Question, decode_answer, encode
from otel_torchdist.stall.company import Presides
from otel_torchdist.tape.peers import (
    MAX_FILES,
    MAX_PEERS,
    PORT_FILE,
    TOKEN_BYTES,
    Peer,
    Peers,
    peer_from_json,
    peers_files,
    port_text,
    read_peers,
    read_port,
    write_peers,
)
from tests.exchange.listening import HOST, peer_at, stranger, until
from tests.stall.simulated_world import RUN, SimulatedWorld

TOKEN = bytes(range(TOKEN_BYTES))
OTHERS = (Peer(4, "node-b", "10.0.0.2", 4711, 4), Peer(8, "nöde-c", "10.0.0.3", 65535, 0))
PEERS = Peers(RUN, TOKEN, 0, HOST, OTHERS)


def file_of(directory: Path, run: int = RUN) -> Path:
    """The file of a run."""
    return directory / f"peers-{run:032x}.json"


# --- peers-<run>.json ---------------------------------------------------------------------------------------------


def test_written_and_read(tmp_path: Path) -> None:
    """What is read is what was written, also after it has been replaced; nobody else may read it."""
    for peers in (dataclasses.replace(PEERS, others=()), PEERS):
        write_peers(tmp_path, peers)
        assert read_peers(file_of(tmp_path)) == peers
    assert stat.S_IMODE(file_of(tmp_path).stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == [file_of(tmp_path).name]
    assert peers_files(tmp_path) == {RUN: (file_of(tmp_path), file_of(tmp_path).stat().st_mtime_ns)}


def test_peer_in_the_store() -> None:
    """A peer is read as it was written, as text and as the bytes that a store gives back."""
    for peer in OTHERS:
        assert peer_from_json(peer.to_json()) == peer
        assert peer_from_json(peer.to_json().encode()) == peer


def test_leftover_of_a_writer_that_died(tmp_path: Path) -> None:
    """A half-written file of a process with our id is no hindrance, and is never taken for a list of peers."""
    hidden = tmp_path / f".{file_of(tmp_path).name}.{os.getpid()}.new"
    hidden.write_text("half")
    assert peers_files(tmp_path) == {}
    write_peers(tmp_path, PEERS)
    assert read_peers(file_of(tmp_path)) == PEERS
    assert not hidden.exists()


def test_links_are_refused(tmp_path: Path) -> None:
    """Neither is a link read nor is anything written through one."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_peers(elsewhere, PEERS)
    before = file_of(elsewhere).read_bytes()
    file_of(tmp_path).symlink_to(file_of(elsewhere))
    (tmp_path / PORT_FILE).symlink_to(elsewhere / PORT_FILE)
    (elsewhere / PORT_FILE).write_text(port_text(HOST, 4711))
    with pytest.raises(OSError, match="symbolic"):
        read_peers(file_of(tmp_path))
    assert read_port(tmp_path) is None
    assert read_port(elsewhere) == (HOST, 4711)
    write_peers(tmp_path, dataclasses.replace(PEERS, own_seat=2))
    assert file_of(elsewhere).read_bytes() == before
    assert not file_of(tmp_path).is_symlink()
    assert read_peers(file_of(tmp_path)).own_seat == 2


def test_old_files_go(tmp_path: Path) -> None:
    """Of many attempts the files of the last are kept; what else lies there is left alone."""
    (tmp_path / "peers-of-mine.json").write_text("mine")
    for run in range(1, MAX_FILES + 10):
        write_peers(tmp_path, dataclasses.replace(PEERS, run=run))
        os.utime(file_of(tmp_path, run), ns=(run * 1_000_000_000, run * 1_000_000_000))
    assert sorted(peers_files(tmp_path)) == list(range(10, MAX_FILES + 10))
    assert (tmp_path / "peers-of-mine.json").exists()


def test_directory_that_is_gone(tmp_path: Path) -> None:
    """To write there is an OSError, to look there finds nothing."""
    gone = tmp_path / "gone"
    with pytest.raises(OSError, match="gone"):
        write_peers(gone, PEERS)
    assert peers_files(gone) == {}
    assert read_port(gone) is None


def test_more_peers_than_may_be(tmp_path: Path) -> None:
    """No more are taken in than speak with each other."""
    others = tuple(Peer(seat, "node", HOST, 4711) for seat in range(1, MAX_PEERS + 50))
    write_peers(tmp_path, dataclasses.replace(PEERS, others=others))
    assert read_peers(file_of(tmp_path)).others == others[:MAX_PEERS]


def changed(**fields: object) -> str:
    """A list of peers in which some fields are others."""
    whole = {"token": TOKEN.hex(), "seat": 0, "host": HOST, "others": [[4, "node-b", HOST, 4711, 4]]}
    return json.dumps(whole | fields)


BAD = {
    "empty": "",
    "truncated": changed()[:-9],
    "no JSON": "peers",
    "no UTF-8": b"\xff\xfe",
    "list": "[]",
    "nested too deeply": "[" * 200_000,
    "no fields": "{}",
    "short token": changed(token="00"),
    "token that is no hex": changed(token="x" * 64),
    "token that is a number": changed(token=1),
    "seat that is none": changed(seat="first"),
    "seat without an end": changed().replace('"seat": 0', '"seat": 1e999'),
    "others that are none": changed(others=3),
    "peer that is none": changed(others=[7]),
    "peer with too little": changed(others=[[4, "node-b", HOST]]),
    "peer with port 0": changed(others=[[4, "node-b", HOST, 0, 4]]),
    "peer with too great a port": changed(others=[[4, "node-b", HOST, 65536, 4]]),
    "peer with a port without an end": changed(others=[[4, "node-b", HOST, float("inf"), 4]]),
    "peer with a seat below 0": changed(others=[[-1, "node-b", HOST, 4711, 4]]),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_bad_file(content: str | bytes, tmp_path: Path) -> None:
    """Whatever lies there instead of a list of peers is one ValueError."""
    file_of(tmp_path).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError):
        read_peers(file_of(tmp_path))


def test_file_of_another_kind(tmp_path: Path) -> None:
    """A pipe or a directory of that name holds nobody up, and is an error as any other."""
    os.mkfifo(file_of(tmp_path, 1))
    file_of(tmp_path, 2).mkdir()
    for run in (1, 2):
        with pytest.raises((OSError, ValueError)):
            read_peers(file_of(tmp_path, run))
    with pytest.raises(OSError, match="No such file"):
        read_peers(file_of(tmp_path, 3))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None)
@given(_JSON)
def test_any_json_is_no_peer_or_one(content: object) -> None:
    """What somebody else has put into the store is a peer or a ValueError, and nothing else."""
    try:
        peer = peer_from_json(json.dumps(content))
    except ValueError:
        return
    assert peer_from_json(peer.to_json()) == peer


@pytest.mark.parametrize(
    "content", ["", "[]", '["127.0.0.1"]', '["127.0.0.1", "x"]', "7", '["a", 1e999]', '{"a": 1}', "[" * 200_000]
)
def test_bad_port_file(content: str, tmp_path: Path) -> None:
    """A port file that says no port is as none."""
    (tmp_path / PORT_FILE).write_text(content)
    assert read_port(tmp_path) is None


# --- the agent ----------------------------------------------------------------------------------------------------


@pytest.fixture
def neighbours(monkeypatch: pytest.MonkeyPatch) -> Iterator[Neighbours]:
    """An agent's, which looks as often as it is asked to."""
    monkeypatch.setattr(neighbours_module, "SEARCH_S", 0.0)
    made = Neighbours()
    yield made
    made.stop()


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings so far."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def ask(port: int, run: int = RUN, token: bytes = TOKEN) -> tuple[int, ...]:
    """The ranks that the agent on a port says that it sees."""
    line = Line(peer_at(port), run, token, new_life())
    return tuple(rank.rank for rank in decode_answer(line.ask(STATE_PATH, encode(Question(9)), 10).body).ranks)


def test_agent_takes_in_a_file(neighbours: Neighbours, tmp_path: Path) -> None:
    """It listens where the rank says, writes down on which port, and answers who knows the run's token."""
    neighbours.search([tmp_path])
    assert os.listdir(tmp_path) == []
    write_peers(tmp_path, dataclasses.replace(PEERS, others=()))
    neighbours.search([tmp_path])
    place = read_port(tmp_path)
    assert place is not None and place[0] == HOST
    assert stat.S_IMODE((tmp_path / PORT_FILE).stat().st_mode) == 0o600
    assert ask(place[1]) == ()
    world = SimulatedWorld(2).snapshot(1.0)
    assert neighbours.meet(world, is_uneasy=False) == Presides(world, 0)
    assert ask(place[1]) == (0, 1)
    with pytest.raises(NoAnswerError, match="token"):
        ask(place[1], token=b"x" * TOKEN_BYTES)


def test_run_on_one_node(neighbours: Neighbours) -> None:
    """Of a run without a file this agent judges by itself; what is said of it, and asked, goes nowhere."""
    world = SimulatedWorld(2).snapshot(1.0)
    seating = neighbours.meet(world, is_uneasy=True)
    assert isinstance(seating, Presides)
    assert seating.world is world
    neighbours.tell(RUN, None)
    assert neighbours.asked() == []


def test_two_agents_find_each_other(neighbours: Neighbours, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node's file names the other agent: the lower seat soon judges with the ranks of both."""
    there = Neighbours()
    directories = [tmp_path / "a", tmp_path / "b"]
    world = SimulatedWorld(4)
    here_sees, there_sees = world.snapshot(1.0, (0, 1)), world.snapshot(1.0, (2, 3))
    try:
        for agent, directory, seat in zip((neighbours, there), directories, (0, 2), strict=True):
            directory.mkdir()
            write_peers(directory, Peers(RUN, TOKEN, seat, HOST))
            agent.search([directory])
        ports = [place[1] for directory in directories if (place := read_port(directory))]
        for agent, directory, seat, other in ((neighbours, 0, 0, 1), (there, 1, 2, 0)):
            peer = Peer(2 - seat, f"node-{other}", HOST, ports[other], 2)
            write_peers(directories[directory], Peers(RUN, TOKEN, seat, HOST, (peer,)))
            agent.search([directories[directory]])

        def is_complete() -> bool:
            there.meet(there_sees, True)
            seating = neighbours.meet(here_sees, True)
            return isinstance(seating, Presides) and sorted(seating.world.ranks) == [0, 1, 2, 3]

        until(is_complete)
    finally:
        there.stop()


def test_port_is_kept(neighbours: Neighbours, tmp_path: Path) -> None:
    """The agent that takes a dead one's place listens where others look for it; if somebody else does, elsewhere."""
    write_peers(tmp_path, PEERS)
    neighbours.search([tmp_path])
    first = read_port(tmp_path)
    neighbours.stop()
    second = Neighbours()
    second.search([tmp_path])
    third = Neighbours()
    try:
        assert read_port(tmp_path) == first
        third.search([tmp_path])
        assert read_port(tmp_path) not in (first, None)
    finally:
        second.stop()
        third.stop()


def test_one_port_for_all_runs(neighbours: Neighbours, tmp_path: Path) -> None:
    """Runs of several job directories on one address are heard on one port, each under its own token."""
    directories = [tmp_path / "a", tmp_path / "b"]
    for run, directory in enumerate(directories, 1):
        directory.mkdir()
        write_peers(directory, Peers(run, bytes([run]) * TOKEN_BYTES, 0, HOST))
    neighbours.search(directories)
    places = {read_port(directory) for directory in directories}
    ((_, port),) = [place for place in places if place]
    for run in (1, 2):
        assert ask(port, run, bytes([run]) * TOKEN_BYTES) == ()
        with pytest.raises(NoAnswerError):
            ask(port, run, bytes([3 - run]) * TOKEN_BYTES)


@pytest.mark.parametrize("host", ["203.0.113.7", "x" * 70, "a b"])
def test_address_that_is_not_here(
    host: str, neighbours: Neighbours, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An address on which nobody can listen is one warning, however often the agent looks; the run is judged alone."""
    write_peers(tmp_path, dataclasses.replace(PEERS, own_host=host))
    for _ in range(5):
        neighbours.search([tmp_path])
    (warning,) = warnings_in(caplog)
    assert "agents of other nodes are not heard" in warning
    assert read_port(tmp_path) is None
    assert isinstance(neighbours.meet(SimulatedWorld(2).snapshot(1.0), True), Presides)


def test_file_that_cannot_be_used(neighbours: Neighbours, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is one warning that names the file; once it has been replaced by a good one all is well."""
    file_of(tmp_path).write_text("[" * 200_000)
    for _ in range(5):
        neighbours.search([tmp_path])
    (warning,) = warnings_in(caplog)
    assert warning.startswith(f"{file_of(tmp_path)}: ")
    write_peers(tmp_path, PEERS)
    for _ in range(5):
        neighbours.search([tmp_path])
    assert read_port(tmp_path) is not None
    assert len(warnings_in(caplog)) == 1


def test_search_is_rare(neighbours: Neighbours, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the agent turns, it looks for files at most twice a second."""
    monkeypatch.setattr(neighbours_module, "SEARCH_S", 3600.0)
    neighbours.search([tmp_path])
    write_peers(tmp_path, PEERS)
    neighbours.search([tmp_path])
    assert read_port(tmp_path) is None


def test_runs_that_are_over_are_left(neighbours: Neighbours, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of which no rank is seen any more is answered for no longer; another one on the same port still is."""
    write_peers(tmp_path, Peers(RUN, TOKEN, 0, HOST))
    write_peers(tmp_path, Peers(RUN + 1, TOKEN, 0, HOST))
    neighbours.search([tmp_path])
    place = read_port(tmp_path)
    assert place is not None
    assert (ask(place[1]), ask(place[1], RUN + 1)) == ((), ())
    monkeypatch.setattr(neighbours_module, "UNSEEN_S", 0.3)
    world = SimulatedWorld(1).snapshot(1.0)

    def is_left() -> bool:
        neighbours.meet(dataclasses.replace(world, run=RUN + 1), False)
        neighbours.search([tmp_path])
        return RUN not in neighbours._runs

    until(is_left)
    with pytest.raises(NoAnswerError, match="status 403"):
        ask(place[1])
    assert ask(place[1], RUN + 1) == (0,)


def test_to_leave_a_run_takes_no_time(neighbours: Neighbours, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads tapes is not held up by an agent that never answers a question that is under way."""
    gate, asked = threading.Event(), threading.Event()

    def silent(connection: socket.socket) -> None:
        asked.set()
        gate.wait(30)

    monkeypatch.setattr(run_exchange, "PEACEFUL_ROUND_S", 0.05)
    with stranger(silent) as port:
        write_peers(tmp_path, Peers(RUN, TOKEN, 0, HOST, (peer_at(port, 4),)))
        neighbours.search([tmp_path])
        neighbours.meet(SimulatedWorld(2).snapshot(1.0), is_uneasy=False)
        assert asked.wait(10)
        monkeypatch.setattr(neighbours_module, "UNSEEN_S", 0.0)
        began = time.monotonic()
        neighbours.search([tmp_path])
        assert time.monotonic() - began < run_exchange.PEACEFUL_TIMEOUT_S / 2
        assert neighbours._runs == {}
        gate.set()
