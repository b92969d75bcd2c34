"""The address of this node on the network that the job uses: where agents of other nodes can reach this one's."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import re
import socket
import struct
from collections.abc import Mapping
from typing import Final

_INTERFACES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_INTERFACE: Final = re.compile(r"=?([A-Za-z0-9_.:-]{1,15})")
_SIOCGIFADDR: Final = 0x8915
_SOMEWHERE: Final = "192.0.2.1"
"""No packet is sent there: a UDP socket that is connected only asks the routing table."""
_ANY_PORT: Final = 9


def own_address(environ: Mapping[str, str]) -> str:
    """The IPv4 address of the interface that the job is told to use, else of the one on the way to its master."""
    for variable in _INTERFACES:
        match = _INTERFACE.fullmatch(environ.get(variable, "").partition(",")[0])
        address = _address_of(match[1]) if match else ""
        if address:
            return address
    master = environ.get("MASTER_ADDR", "")
    address = _address_towards(master) if master else ""
    # The master's own name often means loopback on itself; nobody else can reach it there.
    if address and (not _is_loopback(address) or master == "localhost" or _is_loopback(master)):
        return address
    return _address_towards(_SOMEWHERE) or address or "127.0.0.1"


def is_hidden(host: str, environ: Mapping[str, str]) -> bool:
    """Whether nobody on another node reaches this one at `host`: loopback, where the job's master is elsewhere."""
    master = environ.get("MASTER_ADDR", "")
    return _is_loopback(host) and bool(master) and master != "localhost" and not _is_loopback(master)


def is_every_address(host: str) -> bool:
    """Whether who listens at `host` listens at all addresses."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_unspecified
    return False


def _address_of(interface: str) -> str:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()))
        return socket.inet_ntoa(answer[20:24])
    return ""


def _address_towards(host: str) -> str:
    with contextlib.suppress(OSError, UnicodeError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((host, _ANY_PORT))
        return str(asking.getsockname()[0])
    return ""


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
