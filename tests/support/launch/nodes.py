"""Nodes with networks of their own on this machine: network namespaces behind a bridge, as root only."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

INTERFACE = "eth0"
NAMESPACE_VARIABLE = "TEST_NETNS"
"""Environment variable: the network namespace that a process moves to before it runs; see `warm_interpreter`."""

_MARKS = 50 * 250
"""Nets that nodes can have: 10.200.0 to 10.249.249."""


def why_not() -> str:
    """Why nodes cannot be created here; '' if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need iproute2's `ip`"
    name = f"otdtry{os.getpid()}"
    failed = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode
    if not failed:
        _ip("netns", "del", name)
    return "the kernel makes no network namespaces" if failed else ""


@dataclass(frozen=True)
class Nodes:
    """Some nodes.

    Attributes:
        names: Names of their network namespaces.
        addresses: By node.
        outside: Address of this process, which all nodes reach.
    """

    names: tuple[str, ...]
    addresses: tuple[str, ...]
    outside: str

    def path(self, node: int) -> str:
        """The network namespace of a node, as a file."""
        return f"/run/netns/{self.names[node]}"

    def part(self) -> None:
        """Block all packets between nodes; all nodes still reach this process."""
        self._set("on")

    def join(self) -> None:
        """Undo `part`."""
        self._set("off")

    def _set(self, isolated: str) -> None:
        for name in self.names:
            _ip("link", "set", name, "type", "bridge_slave", "isolated", isolated)


@contextlib.contextmanager
def nodes(count: int = 2) -> Iterator[Nodes]:
    """Create nodes, and remove them afterwards."""
    mark = _free_mark()
    net = f"10.{200 + mark % 50}.{mark // 50}"
    bridge = f"otdbr{mark}"
    made = Nodes(
        tuple(f"otd{mark}n{node}" for node in range(count)),
        tuple(f"{net}.{node + 1}" for node in range(count)),
        f"{net}.254",
    )
    with contextlib.ExitStack() as stack:
        stack.callback(_ip, "link", "del", bridge)
        _ip("addr", "add", f"{made.outside}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for name, address in zip(made.names, made.addresses, strict=True):
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
            _ip("link", "add", name, "type", "veth", "peer", "name", INTERFACE, "netns", name)
            stack.callback(_unlink, name)
            _ip("link", "set", name, "master", bridge, "up")
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", INTERFACE)
            _ip("-n", name, "link", "set", INTERFACE, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield made


def _free_mark() -> int:
    """Create a bridge; return the number in its name and net, which no other nodes have.

    Raises:
        CalledProcessError: The kernel makes no bridges.
    """
    tries = [(os.getpid() + 7 * attempt) % _MARKS for attempt in range(8)]
    for mark in tries:
        # The same process may have other nodes, for tests of several modules.
        if not Path(f"/sys/class/net/otdbr{mark}").exists():
            _ip("link", "add", f"otdbr{mark}", "type", "bridge")
            return mark
    raise FileExistsError(f"nodes of tests that were killed are left: ip link show type bridge: {tries}")


def _unlink(name: str) -> None:
    """Remove a link: it outlives its namespace's name for as long as a process is still ending in there."""
    with contextlib.suppress(subprocess.CalledProcessError):
        _ip("link", "del", name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
