"""Where ranks meet to create the default group, as `init_process_group` is told: by an URL, the environment or a store.

torch reads an URL only in the function that then connects to the store, or hosts it and waits there for all others.
"""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlsplit

from otel_torchdist.capture.c10d.timeouts import milliseconds_of
from otel_torchdist.capture.torch_api import without_prefixes

MAX_ADDRESS: Final = 200
"""Characters of an address."""


class MeetingPlace(NamedTuple):
    """What a rank knows of the default group before it has a store.

    Attributes:
        rank: The rank.
        world_size: How many ranks there are.
        address: Where they meet: `node0:29500`, the path of a file, or `scheme://host` of a handler of the program's.
        timeout_ms: How long the store waits, in milliseconds; 0 if that is not known.
    """

    rank: int
    world_size: int
    address: str
    timeout_ms: int


def meeting_of(url: Any, rank: Any = -1, world_size: Any = -1, **kwargs: Any) -> MeetingPlace | None:
    """Return where ranks meet, from the arguments of torch's `rendezvous`; None if torch would refuse them.

    Raises:
        ValueError: A number or the URL cannot be read.
    """
    parts = urlsplit(str(url))
    query: dict[str, Any] = dict(parse_qsl(parts.query))
    own, size = int(query.get("rank", rank)), int(query.get("world_size", world_size))
    if parts.scheme == "env":
        own = int(os.environ.get("RANK", "-1")) if own < 0 else own
        size = int(os.environ.get("WORLD_SIZE", "-1")) if size < 0 else size
    if own < 0 or size < 1:
        return None
    return MeetingPlace(own, size, _address(parts)[:MAX_ADDRESS], milliseconds_of(kwargs.get("timeout")))


def _address(parts: SplitResult) -> str:
    """Where an URL leads; without what may be secret in it: the user, and the query."""
    host = parts.netloc.rpartition("@")[2]
    match parts.scheme:
        case "env":
            return f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
        case "tcp":
            return host
        case "file":
            return host + parts.path
        case scheme:
            return f"{scheme}://{host}"


def address_of(store: Any) -> str:
    """Return where a store that the program has made is; '' if it does not show that."""
    store = without_prefixes(store)
    if hasattr(store, "host") and hasattr(store, "port"):
        return f"{store.host}:{store.port}"[:MAX_ADDRESS]
    return str(getattr(store, "path", ""))[:MAX_ADDRESS]
