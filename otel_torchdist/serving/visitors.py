"""Who visits the live page: somebody on this machine, and as which user; and whether a browser was deceived.

`/metrics` answers everyone who reaches its port. The page shows stacks and file names, so it tells visitors apart.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from pathlib import Path
from typing import Any, Final

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_HOST: Final = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[^:]*)(?::[0-9]{1,5})?")
MAX_TABLE_BYTES: Final = 16 << 20
"""A connection takes 150 bytes there: more than a hundred thousand are not searched."""


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
    """Return the id of the user whose process has made a connection from this machine; None if it cannot be found.

    The kernel lists both ends of a local connection, each with the user of its socket.
    """
    try:
        client = _in_table(environ["REMOTE_ADDR"], int(environ["REMOTE_PORT"]))
    except (KeyError, ValueError):
        return None
    for table in _TABLES:
        try:
            with table.open("rb") as file:
                lines = file.read(MAX_TABLE_BYTES).splitlines()
        except OSError:
            continue
        for line in lines:
            fields = line.split(maxsplit=8)
            if len(fields) > 7 and fields[1] in client and fields[3] == _ESTABLISHED:
                return int(fields[7])
    return None


_ESTABLISHED: Final = b"01"


def _in_table(address: str, port: int) -> tuple[bytes, ...]:
    """Return how a socket's own address is written in the tables: words of four bytes in the machine's order."""
    found = ipaddress.ip_address(address.partition("%")[0])
    forms = [found.packed]
    if isinstance(found, ipaddress.IPv4Address):
        forms.append(bytes(10) + b"\xff\xff" + found.packed)  # of a socket that speaks both
    elif found.ipv4_mapped is not None:
        forms.append(found.ipv4_mapped.packed)
    return tuple(f"{_words(packed)}:{port:04X}".encode() for packed in forms)


def _words(packed: bytes) -> str:
    words = (packed[place : place + 4] for place in range(0, len(packed), 4))
    return "".join((word[::-1] if sys.byteorder == "little" else word).hex().upper() for word in words)
