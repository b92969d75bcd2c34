"""Who visits the live page: somebody on this machine, and as which user; and whether a browser was deceived.

`/metrics` answers everyone who reaches its port. The page shows stacks and file names, so it tells visitors apart.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Final

from otel_torchdist.serving.socket_owner import Connection, owner_of

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
