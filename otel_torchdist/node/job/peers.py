"""Two small files with which a rank and its node's agent exchange the addresses of the job's agents.

The rank, which has the job's store, writes `peers-<run>.json`: the run's token, the address for this node's agent to
listen on, and the addresses of its peers. The agent, which has neither torch nor a store, writes `exchange.json`: its
port.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from otel_torchdist.system.files.others import changed_ns, read_regular
from otel_torchdist.system.files.owned import replace_at_once

TOKEN_BYTES: Final = 32
MAX_PEERS: Final = 256
"""Maximum number of nodes whose agents exchange data."""
MAX_FILE_BYTES: Final = 1 << 20
MAX_FILES: Final = 16
MAX_AGENT_ID: Final = (1 << 31) - 1
"""Agent ids are global ranks."""
_NAME: Final = re.compile(r"peers-([0-9a-f]{32})\.json")
PORT_FILE: Final = "exchange.json"


@dataclass(frozen=True, slots=True)
class Peer:
    """An agent of the job.

    Attributes:
        agent_id: Global rank that announced the agent; unique among agents. The agent with the lowest id judges.
        node: Name of its node.
        host: Address on which it listens.
        port: Port on which it listens.
        ranks: Number of ranks on its node; 0 if unknown.
    """

    agent_id: int
    node: str
    host: str
    port: int
    ranks: int = 0

    def to_json(self) -> str:
        """Encode the peer for the store."""
        return json.dumps([self.agent_id, self.node, self.host, self.port, self.ranks])


def peer_from_json(text: str | bytes) -> Peer:
    """Decode a peer from the store.

    Raises:
        ValueError: The text is not a peer.
    """
    return _peer(_parsed(text))


@dataclass(frozen=True, slots=True)
class Peers:
    """An agent's peers in one run.

    Attributes:
        run: 128-bit id.
        token: Secret with which agents sign their messages.
        own_id: Agent id of this node's agent; see `Peer`.
        own_host: Address for this node's agent to listen on.
        others: The peers announced so far.
    """

    run: int
    token: bytes
    own_id: int
    own_host: str
    others: tuple[Peer, ...] = ()


def write_peers(directory: Path, peers: Peers) -> None:
    """Write or replace the file of a run, readable only by this user.

    Raises:
        OSError: No space is left, or the directory is gone.
    """
    content = {
        "token": peers.token.hex(),
        "agent_id": peers.own_id,
        "host": peers.own_host,
        "others": [json.loads(peer.to_json()) for peer in peers.others],
    }
    path = directory / f"peers-{peers.run:032x}.json"
    replace_at_once(path, path.with_name(f".{path.name}.{os.getpid()}.new"), json.dumps(content).encode())
    for path in sorted(_files(directory), key=changed_ns)[:-MAX_FILES]:  # files of earlier attempts
        path.unlink(missing_ok=True)


def peers_files(directory: Path) -> Mapping[int, tuple[Path, int]]:
    """Return the peers files of a job directory by run id, each with its modification time."""
    matches = {path: _NAME.fullmatch(path.name) for path in _files(directory)}
    return {int(match[1], 16): (path, changed_ns(path)) for path, match in matches.items() if match}


def read_peers(path: Path) -> Peers:
    """Read the file of a run.

    Raises:
        OSError: The file is gone, is a link, or belongs to another user.
        ValueError: The file is not a list of peers.
    """
    match = _NAME.fullmatch(path.name)
    content = _parsed(_read(path))
    if match is None or not isinstance(content, dict):
        raise ValueError("it is not a list of peers")
    fields = cast("dict[str, Any]", content)
    try:
        others = tuple(_peer(content) for content in fields["others"])[:MAX_PEERS]
        token, agent_id = bytes.fromhex(fields["token"]), int(fields["agent_id"])
        if not 0 <= agent_id <= MAX_AGENT_ID:
            raise ValueError("its id is out of range")
        if len(token) != TOKEN_BYTES:
            raise ValueError("its token has the wrong length")
        return Peers(int(match[1], 16), token, agent_id, str(fields["host"]), others)
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"it is not a list of peers: {error!r}") from error


@dataclass(frozen=True, slots=True)
class ListeningAgent:
    """The address on which the agent of a job directory listens for its peers.

    Attributes:
        host: Address.
        port: Port.
        runs: Ids of the runs for which it listens; an earlier agent's file lists other runs.
    """

    host: str
    port: int
    runs: frozenset[int] = frozenset()

    def to_json(self) -> str:
        """Encode the address for `PORT_FILE`."""
        return json.dumps([self.host, self.port, sorted(f"{run:032x}" for run in self.runs)])


def read_listening(directory: Path) -> ListeningAgent | None:
    """Return the address of the agent of a job directory; None if there is none. The agent may have died meanwhile."""
    with contextlib.suppress(OSError, ValueError, TypeError, OverflowError):
        host, port, runs, *_later = cast("list[Any]", _parsed(_read(directory / PORT_FILE)))
        listening = ListeningAgent(str(host), int(port), frozenset(int(run, 16) for run in runs))
        return listening if 0 < listening.port < 1 << 16 else None
    return None


def _parsed(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _peer(content: Any) -> Peer:
    try:
        agent_id, node, host, port, ranks, *_later = content  # a later version may append fields
        peer = Peer(int(agent_id), str(node), str(host), int(port), int(ranks))
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"it is not a peer: {error}") from error
    if not 0 < peer.port < 1 << 16 or not 0 <= peer.agent_id <= MAX_AGENT_ID:
        raise ValueError("it is not a peer: its port or id is out of range")
    return peer


def _files(directory: Path) -> list[Path]:
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        return [directory / entry.name for entry in entries if _NAME.fullmatch(entry.name)]
    return []


def _read(path: Path) -> bytes:
    return read_regular(path, MAX_FILE_BYTES, os.geteuid())  # another user must not choose where agents connect
