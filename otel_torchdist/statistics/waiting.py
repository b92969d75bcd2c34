"""Which ranks wait for which in an operation."""

from __future__ import annotations

from enum import Enum
from typing import Final

from otel_torchdist.statistics.traffic import kind_of


class Waiting(Enum):
    """Which ranks cannot leave an operation before which others have entered it."""

    EVERYONE = "everyone waits for the last"
    FOR_ROOT = "everyone waits for the root"
    ROOT = "the root waits for the last"
    RECEIVER = "the receiver waits for the sender"
    UNKNOWN = "not known"


_WAITING: Final = {
    **dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "all_to_all"), Waiting.EVERYONE),
    **dict.fromkeys(("barrier", "monitored_barrier"), Waiting.EVERYONE),
    **dict.fromkeys(("broadcast", "scatter"), Waiting.FOR_ROOT),
    **dict.fromkeys(("reduce", "gather"), Waiting.ROOT),
    **dict.fromkeys(("send", "recv"), Waiting.RECEIVER),
}


def waiting_in(operation: str) -> Waiting:
    """Return which rank waits for which in an operation."""
    return _WAITING.get(kind_of(operation), Waiting.UNKNOWN)
