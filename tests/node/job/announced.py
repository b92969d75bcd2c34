"""Where the agents of a run are, as announced by a rank, and the file with that announcement."""

from __future__ import annotations

from pathlib import Path

from otel_torchdist.node.job.peers import TOKEN_BYTES, Peer, Peers
from tests.agent.exchange.listening import HOST
from tests.support.worlds.fake_world import RUN

TOKEN = bytes(range(TOKEN_BYTES))
OTHERS = (Peer(4, "node-b", "10.0.0.2", 4711, 4), Peer(8, "nöde-c", "10.0.0.3", 65535, 0))
PEERS = Peers(RUN, TOKEN, 0, HOST, OTHERS)


def file_of(directory: Path, run: int = RUN) -> Path:
    """The announcement's file for a run."""
    return directory / f"peers-{run:032x}.json"
