"""Helpers for tests of peer discovery: the agents' addresses, and the files that ranks write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from otel_torchdist.capture.core.run.peer_discovery import DiscoveryBounds, store_key
from otel_torchdist.node.job.peers import PORT_FILE, ListeningAgent, Peers, peers_files, read_peers

HOST = "127.0.0.1"
RUN = 0xFEED
QUICK = DiscoveryBounds(first_pause_s=0.01, max_pause_s=0.05)
"""Polls more often than in production."""
LOCAL = 2
"""Ranks on each node."""


def say_port(directory: Path, port: int = 4711, host: str = HOST) -> None:
    """Write the port file as an agent does."""
    (directory / PORT_FILE).write_text(ListeningAgent(host, port, frozenset({RUN, *peers_files(directory)})).to_json())


def peers_in(directory: Path) -> Peers:
    """Return the file that a rank has written for its node's agent."""
    ((path, _),) = peers_files(directory).values()
    return read_peers(path)


def announced(store: Any, run: int = RUN) -> int:
    """The number of announced agents."""
    return store.add(store_key(run, "count"), 0)
