"""The files in which a rank and its node's agent state where agents are: written, read, and bad."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_torchdist.node.job.peers import (
    MAX_FILES,
    MAX_PEERS,
    PORT_FILE,
    ListeningAgent,
    Peer,
    peer_from_json,
    peers_files,
    read_listening,
    read_peers,
    write_peers,
)
from tests.agent.exchange.listening import HOST
from tests.node.job.announced import OTHERS, PEERS, TOKEN, file_of
from tests.support.worlds.fake_world import RUN


def test_written_and_read(tmp_path: Path) -> None:
    """What is read is what was written, also after it has been replaced; no other user can read it."""
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
    """A half-written file of a process with our id does no harm, and is never taken for a list of peers."""
    hidden = tmp_path / f".{file_of(tmp_path).name}.{os.getpid()}.new"
    hidden.write_text("half")
    assert peers_files(tmp_path) == {}
    write_peers(tmp_path, PEERS)
    assert read_peers(file_of(tmp_path)) == PEERS
    assert not hidden.exists()


def test_links_are_refused(tmp_path: Path) -> None:
    """Links are neither read nor written through."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_peers(elsewhere, PEERS)
    before = file_of(elsewhere).read_bytes()
    file_of(tmp_path).symlink_to(file_of(elsewhere))
    (tmp_path / PORT_FILE).symlink_to(elsewhere / PORT_FILE)
    (elsewhere / PORT_FILE).write_text(ListeningAgent(HOST, 4711, frozenset({RUN})).to_json())
    with pytest.raises(OSError, match="symbolic"):
        read_peers(file_of(tmp_path))
    assert read_listening(tmp_path) is None
    assert read_listening(elsewhere) == ListeningAgent(HOST, 4711, frozenset({RUN}))
    write_peers(tmp_path, dataclasses.replace(PEERS, own_id=2))
    assert file_of(elsewhere).read_bytes() == before
    assert not file_of(tmp_path).is_symlink()
    assert read_peers(file_of(tmp_path)).own_id == 2


def test_old_files_go(tmp_path: Path) -> None:
    """Of many attempts the files of the last ones are kept; other files there are left alone."""
    (tmp_path / "peers-of-mine.json").write_text("mine")
    for run in range(1, MAX_FILES + 10):
        write_peers(tmp_path, dataclasses.replace(PEERS, run=run))
        os.utime(file_of(tmp_path, run), ns=(run * 1_000_000_000, run * 1_000_000_000))
    assert sorted(peers_files(tmp_path)) == list(range(10, MAX_FILES + 10))
    assert (tmp_path / "peers-of-mine.json").exists()


def test_directory_that_is_gone(tmp_path: Path) -> None:
    """Writing there is an OSError, reading there finds nothing."""
    gone = tmp_path / "gone"
    with pytest.raises(OSError, match="gone"):
        write_peers(gone, PEERS)
    assert peers_files(gone) == {}
    assert read_listening(gone) is None


def test_more_peers_than_may_be(tmp_path: Path) -> None:
    """No more peers are accepted than may talk to each other."""
    others = tuple(Peer(agent_id, "node", HOST, 4711) for agent_id in range(1, MAX_PEERS + 50))
    write_peers(tmp_path, dataclasses.replace(PEERS, others=others))
    assert read_peers(file_of(tmp_path)).others == others[:MAX_PEERS]


def changed(**fields: object) -> str:
    """A list of peers with some fields changed."""
    whole = {"token": TOKEN.hex(), "agent_id": 0, "host": HOST, "others": [[4, "node-b", HOST, 4711, 4]]}
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
    "id that is none": changed(agent_id="first"),
    "id without an end": changed().replace('"agent_id": 0', '"agent_id": 1e999'),
    "others that are none": changed(others=3),
    "peer that is none": changed(others=[7]),
    "peer with too little": changed(others=[[4, "node-b", HOST]]),
    "peer with port 0": changed(others=[[4, "node-b", HOST, 0, 4]]),
    "peer with too great a port": changed(others=[[4, "node-b", HOST, 65536, 4]]),
    "peer with a port without an end": changed(others=[[4, "node-b", HOST, float("inf"), 4]]),
    "peer with an id below 0": changed(others=[[-1, "node-b", HOST, 4711, 4]]),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_bad_file(content: str | bytes, tmp_path: Path) -> None:
    """Any other content in place of a list of peers is one ValueError."""
    file_of(tmp_path).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError):
        read_peers(file_of(tmp_path))


def test_file_of_another_kind(tmp_path: Path) -> None:
    """A pipe or a directory of that name causes no delay, and is an error like any other."""
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
    """Foreign content in the store is a peer or a ValueError, and nothing else."""
    try:
        peer = peer_from_json(json.dumps(content))
    except ValueError:
        return
    assert peer_from_json(peer.to_json()) == peer


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '["127.0.0.1"]',
        '["127.0.0.1", "x", []]',
        "7",
        '["a", 1e999, []]',
        '["a", 70000, []]',
        '["a", 7000, [3]]',
        '{"a": 1}',
        "[" * 200_000,
    ],
)
def test_bad_port_file(content: str, tmp_path: Path) -> None:
    """A port file without a port counts as none."""
    (tmp_path / PORT_FILE).write_text(content)
    assert read_listening(tmp_path) is None
