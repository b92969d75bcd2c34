"""Lets the agents of a job's nodes discover each other through the job's store, before anything stalls.

One rank per node announces the address of its node's agent, and writes the addresses of the others to a file for that
agent. This runs on a thread that may be abandoned, with a clone of the store. Afterwards the store is not needed any
more. The announced address is this node's address on the network that the job uses.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import ipaddress
import logging
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_torchdist.node.job.directory import tapes_in
from otel_torchdist.node.job.peers import (
    MAX_PEERS,
    TOKEN_BYTES,
    Peer,
    Peers,
    peer_from_json,
    read_listening,
    write_peers,
)
from otel_torchdist.system.files.locks import is_file_locked

STORE_TIMEOUT: Final = datetime.timedelta(seconds=10)
_CREATE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW

_logger = logging.getLogger("otel_torchdist")


class RankAddress(NamedTuple):
    """Location of a rank.

    Attributes:
        tape: Its tape, in the job directory.
        host: Address at which its node's agent should listen; '' to determine it automatically.
    """

    rank: int
    world_size: int
    tape: Path
    host: str = ""


class DiscoveryBounds(NamedTuple):
    """Bounds on the search for other agents.

    Attributes:
        first_pause_s: Seconds between the first polls of the store, and between polls for this node's agent.
        max_pause_s: Maximum seconds between later polls of the store.
        agent_due_s: Timeout in seconds for this node's agent.
        discovery_s: Timeout in seconds for other nodes.
        max_peers: Maximum number of agents that exchange data.
    """

    first_pause_s: float = 0.2
    max_pause_s: float = 5.0
    agent_due_s: float = 60.0
    discovery_s: float = 120.0
    max_peers: int = MAX_PEERS


USUAL_BOUNDS: Final = DiscoveryBounds()


class PeerDiscovery:
    """The discovery of the peer agents of one run."""

    def __init__(
        self,
        address: RankAddress,
        stopping: threading.Event,
        environ: Mapping[str, str] = os.environ,
        bounds: DiscoveryBounds = USUAL_BOUNDS,
    ) -> None:
        """Initialize the discovery. `discover` runs it.

        Args:
            address: Location of this rank.
            stopping: Ends the discovery when set.
            environ: The environment.
            bounds: Bounds on time and results.
        """
        self._bounds = bounds
        self._address = address
        self._directory = address.tape.parent
        self._stopping = stopping
        self._environ = environ
        local = environ.get("LOCAL_WORLD_SIZE", "")
        self._local_size = int(local) if local.isdecimal() else 0

    def prepare(self, store: Any, run: int) -> None:
        """Write the token to the store. Called on rank 0 only, before other ranks can know the run id."""
        if self._local_size < self._address.world_size:
            store.set(store_key(run, "token"), os.urandom(TOKEN_BYTES).hex())

    def discover(self, store: Any, run: int) -> None:
        """Announce this node's agent, and find the agents of other nodes. May take a few minutes.

        Raises:
            RuntimeError: The store fails.
            OSError: The job directory cannot be written to.
            ValueError: The store holds values of other code.
        """
        if self._is_alone() or not self._is_first(run):
            return
        store.set_timeout(STORE_TIMEOUT)
        if not store.check([store_key(run, "token")]):  # set before the run id, or never
            return
        token = bytes.fromhex(store.get(store_key(run, "token")).decode())
        if len(token) != TOKEN_BYTES:  # the store of torch's `fake` backend claims to have every key, and holds none
            _logger.info("the job's store keeps no values: this node's agent judges from its own ranks only")
            return
        node_address = own_address(self._environ)
        if is_unreachable(self._address.host or node_address, self._environ):
            _logger.info("agents of other nodes cannot reach this node's agent, which judges from its own ranks only")
            return
        peers = Peers(run, token, self._address.rank, self._address.host or node_address)
        write_peers(self._directory, peers)
        port = self._wait_for_agent(peers.own_host, run)
        if not port:
            return
        # An agent that listens at all addresses is reachable at this node's address in the job's network.
        reached_at = node_address if is_wildcard_address(peers.own_host) else peers.own_host
        peer = Peer(self._address.rank, socket.gethostname(), reached_at, port, self._local_size)
        number = store.add(store_key(run, "count"), 1)
        if number > self._bounds.max_peers:
            _logger.info(
                "only the agents of the first %d nodes exchange data: this node's agent judges from its own ranks only",
                self._bounds.max_peers,
            )
            return
        store.set(store_key(run, str(number)), peer.to_json())
        self._find_others(store, peers)

    def _find_others(self, store: Any, peers: Peers) -> None:
        agents: dict[int, Peer] = {}
        deadline, pause = time.monotonic() + self._bounds.discovery_s, self._bounds.first_pause_s
        while not self._stopping.wait(pause) and time.monotonic() < deadline:
            pause = min(pause * 1.5, self._bounds.max_pause_s)
            count = min(store.add(store_key(peers.run, "count"), 0), self._bounds.max_peers)
            new = [number for number in range(1, count + 1) if number not in agents]
            new = [number for number in new if store.check([store_key(peers.run, str(number))])]
            if not new:
                continue
            agents |= {number: peer_from_json(store.get(store_key(peers.run, str(number)))) for number in new}
            others = tuple(peer for peer in agents.values() if peer.agent_id != peers.own_id)
            write_peers(self._directory, Peers(peers.run, peers.token, peers.own_id, peers.own_host, others))
            if sum(peer.ranks for peer in agents.values()) >= self._address.world_size:
                return

    def _is_alone(self) -> bool:
        """Return whether all ranks are on this node, according to the launcher, else to the tapes after a wait."""
        if self._local_size:
            return self._local_size >= self._address.world_size
        self._stopping.wait(self._bounds.max_pause_s / 2)
        live = 1 + sum(_is_written(path) for path in tapes_in(self._directory) if path != self._address.tape)
        return live >= self._address.world_size

    def _is_first(self, run: int) -> bool:
        """Return whether this rank is the first of its node. A file decides: the ranks share nothing else."""
        try:
            os.close(os.open(self._directory / f"meeting-{run:032x}", _CREATE_FLAGS, 0o600))
        except FileExistsError:
            return False
        return True

    def _wait_for_agent(self, host: str, run: int) -> int:
        """Wait for this node's agent. Return its port, or 0 after the timeout."""
        deadline = time.monotonic() + self._bounds.agent_due_s
        while not self._stopping.wait(self._bounds.first_pause_s) and time.monotonic() < deadline:
            agent = read_listening(self._directory)
            if agent is not None and agent.host == host and run in agent.runs:
                return agent.port
        return 0


def store_key(run: int, name: str) -> str:
    """Return the store key of an entry of a run's agents."""
    return f"otel_torchdist/peers/{run:032x}/{name}"


def _is_written(path: Path) -> bool:
    """Return whether another process is writing a tape. For our own tape, the check would release our lock."""
    try:
        return is_file_locked(path)
    except OSError:
        return False


_INTERFACES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_INTERFACE: Final = re.compile(r"=?([A-Za-z0-9_.:-]{1,15})")
_SIOCGIFADDR: Final = 0x8915
_DOCUMENTATION_ADDRESS: Final = "192.0.2.1"
"""An address reserved for documentation. No packet is sent: connecting a UDP socket only queries the routing table."""
_ANY_PORT: Final = 9


def own_address(environ: Mapping[str, str]) -> str:
    """Return this node's IPv4 address: of the configured interface, else of the interface towards the master."""
    for variable in _INTERFACES:
        match = _INTERFACE.fullmatch(environ.get(variable, "").partition(",")[0])
        address = _address_of(match[1]) if match else ""
        if address:
            return address
    master = environ.get("MASTER_ADDR", "")
    address = _address_towards(master) if master else ""
    # On the master, its name often resolves to loopback, which no other node can reach.
    if address and (not _is_loopback(address) or master == "localhost" or _is_loopback(master)):
        return address
    return _address_towards(_DOCUMENTATION_ADDRESS) or address or "127.0.0.1"


def is_unreachable(host: str, environ: Mapping[str, str]) -> bool:
    """Return whether other nodes cannot reach `host`: it is loopback, and the job's master is elsewhere."""
    master = environ.get("MASTER_ADDR", "")
    return _is_loopback(host) and bool(master) and master != "localhost" and not _is_loopback(master)


def is_wildcard_address(host: str) -> bool:
    """Return whether listening at `host` means listening at all addresses."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_unspecified
    return False


def _address_of(interface: str) -> str:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()))
        return socket.inet_ntoa(reply[20:24])
    return ""


def _address_towards(host: str) -> str:
    with contextlib.suppress(OSError, UnicodeError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, _ANY_PORT))
        return str(probe.getsockname()[0])
    return ""


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
