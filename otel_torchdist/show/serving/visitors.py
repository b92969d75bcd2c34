"""Visitors of the live page: whether they are on this machine, their user, and protection against DNS rebinding.

`/metrics` answers everyone who reaches its port. The page shows stacks and file names, so it checks its visitors.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import re
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_HOST: Final = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[^:]*)(?::[0-9]{1,5})?")


def is_local(address: str) -> bool:
    """Return whether a client's address belongs to this machine's loopback interface."""
    try:
        client = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = client.ipv4_mapped if isinstance(client, ipaddress.IPv6Address) else None
    return (mapped or client).is_loopback


def names_this_machine(host: str) -> bool:
    """Return whether the `Host` of a request is a name or address of this machine's loopback interface.

    Any site may let its own name point to 127.0.0.1, and then read what is served there as if it came from that site
    (DNS rebinding). The browser still sends that site's name.
    """
    match = _HOST.fullmatch(host.strip())
    if match is None:
        return False
    name = match["name"].strip("[]").rstrip(".").lower()
    return name == "localhost" or name.endswith(".localhost") or is_local(name)


def user_of(environ: dict[str, Any]) -> int | None:
    """Return the id of the user whose process made a connection from this machine; None if unknown."""
    try:
        client, client_port = environ["REMOTE_ADDR"], int(environ["REMOTE_PORT"])
        return owner_of(Connection(client, client_port, environ["LOCAL_ADDR"], int(environ["LOCAL_PORT"])))
    except (KeyError, ValueError):
        return None


# --- owners of sockets ------------------------------------------------------------------------------------------------
# Asks the kernel for the user who owns the client's socket of a connection within this machine.


TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
MAX_TABLE_BYTES: Final = 16 << 20
"""Upper bound on the bytes read from a table. A connection takes 150 bytes, so this is over 100,000 connections."""

# The headers linux/netlink.h and linux/inet_diag.h.
_HEADER: Final = struct.Struct("=LHHLL")
_REQUEST: Final = struct.Struct("=BBBxL")
_PORTS: Final = struct.Struct("!HH")
_ADDRESS_BYTES: Final = 16
_ANY_SOCKET: Final = struct.pack("=LLL", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST: Final = 1
_NETLINK_SOCK_DIAG: Final = 4
_ESTABLISHED: Final = 1
_OVERFLOW: Final = 65_534
"""The id of `nobody`, which the kernel reports for users without an id in a user namespace."""
USER_MAP: Final = Path("/proc/self/uid_map")
_STATE_AT: Final = _HEADER.size + 1
_USER_AT: Final = _HEADER.size + 64
_PATIENCE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Connection:
    """The addresses of a TCP connection.

    Attributes:
        client: Address of the client.
        server: Address of this server.
    """

    client: str
    client_port: int
    server: str
    server_port: int


Lookup = Callable[[bytes, int, bytes, int], int | None]
"""Returns the user id of a socket, from its packed address and port, then those of its peer; None if unknown."""


def owner_of(
    connection: Connection,
    lookup: Lookup | None = None,
    tables: Sequence[Path] = TABLES,
    user_map: Path = USER_MAP,
) -> int | None:
    """Return the id of the user who owns the client's socket; None if the kernel does not report it.

    Args:
        connection: The connection.
        lookup: Asks the kernel for one socket; raises OSError if that is not possible. `ask_netlink` if None.
        tables: The kernel's tables of sockets.
        user_map: Ids of this process's user namespace.
    """
    try:
        client, server = _packed(connection.client), _packed(connection.server)
    except ValueError:
        return None
    user: int | None = None
    with contextlib.suppress(OSError):
        user = (lookup or ask_netlink)(client, connection.client_port, server, connection.server_port)
    if user is None:
        # Netlink may be forbidden, or its kernel module missing. Reading the tables takes milliseconds.
        user = _in_tables(tables, client, connection.client_port, server, connection.server_port)
    return None if user == _OVERFLOW and not _knows_all_users(user_map) else user


@functools.cache
def _knows_all_users(user_map: Path) -> bool:
    """Return whether user ids are unambiguous: in a user namespace, many users are mapped to the id of `nobody`."""
    try:
        return user_map.read_text().split() == ["0", "0", str((1 << 32) - 1)]
    except OSError:
        return False


def _packed(address: str) -> bytes:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped.packed
    return parsed.packed


def ask_netlink(client: bytes, client_port: int, server: bytes, server_port: int) -> int | None:
    """Look one socket up through netlink.

    Raises:
        OSError: Netlink is not available.
    """
    family = socket.AF_INET if len(client) == 4 else socket.AF_INET6
    addresses = client.ljust(_ADDRESS_BYTES, b"\0") + server.ljust(_ADDRESS_BYTES, b"\0")
    wanted = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 1 << _ESTABLISHED)
    body = wanted + _PORTS.pack(client_port, server_port) + addresses + _ANY_SOCKET
    header = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_PATIENCE_S)
        kernel.sendto(header + body, (0, 0))
        answer = kernel.recv(4096)
    if len(answer) < _USER_AT + 4 or _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    return struct.unpack_from("=L", answer, _USER_AT)[0] if answer[_STATE_AT] == _ESTABLISHED else None


def _in_tables(tables: Sequence[Path], client: bytes, client_port: int, server: bytes, server_port: int) -> int | None:
    """Look up a socket by both addresses: sockets of several users may share a port if their servers differ."""
    mapped = bytes(10) + b"\xff\xff"
    prefixes = [b"", mapped] if len(client) == 4 else [b""]  # a dual-stack socket has mapped addresses
    wanted = [[_endpoint(prefix + client, client_port), _endpoint(prefix + server, server_port)] for prefix in prefixes]
    for table in tables:
        try:
            with table.open("rb") as file:
                lines = file.read(MAX_TABLE_BYTES).splitlines()
        except OSError:
            continue
        for line in lines:
            fields = line.split(maxsplit=8)
            if len(fields) > 7 and fields[1:3] in wanted and fields[3] == b"01":
                return int(fields[7])
    return None


def _endpoint(packed: bytes, port: int) -> bytes:
    """Format an address and port as in /proc/net/tcp: 32-bit words in host byte order."""
    words = (packed[index : index + 4] for index in range(0, len(packed), 4))
    address = "".join((word[::-1] if sys.byteorder == "little" else word).hex().upper() for word in words)
    return f"{address}:{port:04X}".encode()
