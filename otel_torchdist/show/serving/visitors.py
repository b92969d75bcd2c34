"""Who visits the live page: somebody on this machine, and as which user; and whether a browser was deceived.

`/metrics` answers everyone who reaches its port. The page shows stacks and file names, so it tells visitors apart.
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
    """Whether a client's address is one of this machine's loopback interface."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def names_this_machine(host: str) -> bool:
    """Whether the `Host` of a request is a name or address of this machine's loopback interface.

    Any site may let its own name point to 127.0.0.1 and then read what is served there, as if it came from that site
    (DNS rebinding). The browser still sends that site's name.
    """
    match = _HOST.fullmatch(host.strip())
    if match is None:
        return False
    name = match["name"].strip("[]").rstrip(".").lower()
    return name == "localhost" or name.endswith(".localhost") or is_local(name)


def user_of(environ: dict[str, Any]) -> int | None:
    """Return the id of the user whose process has made a connection from this machine; None if it cannot be found."""
    try:
        client, client_port = environ["REMOTE_ADDR"], int(environ["REMOTE_PORT"])
        return owner_of(Connection(client, client_port, environ["LOCAL_ADDR"], int(environ["LOCAL_PORT"])))
    except (KeyError, ValueError):
        return None


# --- owners of sockets ------------------------------------------------------------------------------------------------
# Asks the kernel which user's socket is at the other end of a connection within this machine.


TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
MAX_TABLE_BYTES: Final = 16 << 20
"""A connection takes 150 bytes there: more than a hundred thousand are not searched."""

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
USER_MAP: Final = Path("/proc/self/uid_map")
_STATE_AT: Final = _HEADER.size + 1
_USER_AT: Final = _HEADER.size + 64
_PATIENCE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Connection:
    """Both ends of a TCP connection.

    Attributes:
        client: Address of the end that is asked about.
        client_port: Its port.
        server: Address of our end.
        server_port: Its port.
    """

    client: str
    client_port: int
    server: str
    server_port: int


Lookup = Callable[[bytes, int, bytes, int], int | None]
"""Returns the id of the user of one end, from the packed address and the port of that end and of the other."""


def owner_of(
    connection: Connection,
    lookup: Lookup | None = None,
    tables: Sequence[Path] = TABLES,
    user_map: Path = USER_MAP,
) -> int | None:
    """Return the id of the user whose socket is at the client's end; None if the kernel does not say.

    Args:
        connection: The connection.
        lookup: Asks the kernel for one socket; raises OSError where that is not possible. `asked_netlink` if None.
        tables: The kernel's tables of sockets.
        user_map: Ids of this process's user namespace.
    """
    try:
        client, server = _packed(connection.client), _packed(connection.server)
    except ValueError:
        return None
    found: int | None = None
    with contextlib.suppress(OSError):
        found = (lookup or asked_netlink)(client, connection.client_port, server, connection.server_port)
    if found is None:
        # Netlink may be forbidden, or lack the module that answers. Tables take milliseconds: all buckets are visited.
        found = _in_tables(tables, client, connection.client_port, server, connection.server_port)
    return None if found == _OVERFLOW and not _knows_all_users(user_map) else found


@functools.cache
def _knows_all_users(user_map: Path) -> bool:
    """Whether this process is in no user namespace; in one, many users have the same id, that of `nobody`."""
    try:
        return user_map.read_text().split() == ["0", "0", str((1 << 32) - 1)]
    except OSError:
        return False


def _packed(address: str) -> bytes:
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped.packed
    return found.packed


def asked_netlink(client: bytes, client_port: int, server: bytes, server_port: int) -> int | None:
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
    """Look one socket up by both ends: sockets of several users may share a port if they lead to different servers."""
    mapped = bytes(10) + b"\xff\xff"
    prefixes = [b"", mapped] if len(client) == 4 else [b""]  # of a socket that speaks both
    wanted = [[_end(prefix + client, client_port), _end(prefix + server, server_port)] for prefix in prefixes]
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


def _end(packed: bytes, port: int) -> bytes:
    """Return an end of a connection as the tables have it: words of four bytes in the machine's order, and the port."""
    words = (packed[place : place + 4] for place in range(0, len(packed), 4))
    address = "".join((word[::-1] if sys.byteorder == "little" else word).hex().upper() for word in words)
    return f"{address}:{port:04X}".encode()
