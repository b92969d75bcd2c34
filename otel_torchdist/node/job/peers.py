"""Two small files through which a rank and its node's agent exchange the addresses of the job's agents.

The rank, which has the job's store, writes `peers-<run>.json`: the run's token, where this node's agent should listen,
and where its peers listen. The agent, which has neither torch nor a store, writes `exchange.json`: its port.
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
        agent_id: The global rank that announced it, unique among the agents. The agent with the lowest one leads.
        node: Its node's name.
        host: Address on which it listens.
        port: Port on which it listens.
        ranks: Number of ranks on its node; 0 when the launcher does not state it.
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
    """Read what `Peer.to_json` has written.

    Raises:
        ValueError: The text is something else.
    """
    return _peer(_parsed(text))


@dataclass(frozen=True, slots=True)
class Peers:
    """What an agent needs to know about its peers in one run.

    Attributes:
        run: 128-bit id.
        token: Signs the messages between agents.
        own_id: See `Peer`.
        own_host: Address on which to listen for peers.
        others: The peers that have been announced so far.
    """

    run: int
    token: bytes
    own_id: int
    own_host: str
    others: tuple[Peer, ...] = ()


def write_peers(directory: Path, peers: Peers) -> None:
    """Write or replace the file of a run, for this user alone.

    Raises:
        OSError: There is no room, or the directory is gone.
    """
    content = {
        "token": peers.token.hex(),
        "agent_id": peers.own_id,
        "host": peers.own_host,
        "others": [json.loads(peer.to_json()) for peer in peers.others],
    }
    path = directory / f"peers-{peers.run:032x}.json"
    replace_at_once(path, path.with_name(f".{path.name}.{os.getpid()}.new"), json.dumps(content).encode())
    for path in sorted(_files(directory), key=changed_ns)[:-MAX_FILES]:  # of earlier attempts
        path.unlink(missing_ok=True)


def peers_files(directory: Path) -> Mapping[int, tuple[Path, int]]:
    """Find the files of a job directory by run, each with its modification time."""
    found = {path: _NAME.fullmatch(path.name) for path in _files(directory)}
    return {int(match[1], 16): (path, changed_ns(path)) for path, match in found.items() if match}


def read_peers(path: Path) -> Peers:
    """Read what `write_peers` has written.

    Raises:
        OSError: The file is gone, is a link, or belongs to another user.
        ValueError: The file holds something else.
    """
    match = _NAME.fullmatch(path.name)
    content = _parsed(_read(path))
    if match is None or not isinstance(content, dict):
        raise ValueError("it is not a list of peers")
    fields = cast("dict[str, Any]", content)
    try:
        others = tuple(_peer(one) for one in fields["others"])[:MAX_PEERS]
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
    """Where the agent of a job directory listens for its peers.

    Attributes:
        host: Address.
        port: Port.
        runs: The runs for which it listens; an agent that is gone listened for others.
    """

    host: str
    port: int
    runs: frozenset[int] = frozenset()

    def to_json(self) -> str:
        """Encode it for `PORT_FILE`."""
        return json.dumps([self.host, self.port, sorted(f"{run:032x}" for run in self.runs)])


def read_listening(directory: Path) -> ListeningAgent | None:
    """Read where the agent of a job directory listens, or one that died did; None when none has announced it."""
    with contextlib.suppress(OSError, ValueError, TypeError, OverflowError):
        host, port, runs = cast("list[Any]", _parsed(_read(directory / PORT_FILE)))
        found = ListeningAgent(str(host), int(port), frozenset(int(run, 16) for run in runs))
        return found if 0 < found.port < 1 << 16 else None
    return None


def _parsed(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _peer(content: Any) -> Peer:
    try:
        agent_id, node, host, port, ranks = content
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
    return read_regular(path, MAX_FILE_BYTES, os.geteuid())  # it says where to listen and to connect
