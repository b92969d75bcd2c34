"""Sizes of messages: of an element, and classes few enough for a label and far enough apart for latencies to differ."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

LARGER: Final = "larger"
BOUNDS: Final = {12: "4KiB", 16: "64KiB", 20: "1MiB", 24: "16MiB", 28: "256MiB"}
"""Names of the size classes, by the power of two that is the largest size in each."""

_MOST_BITS: Final = max(BOUNDS) + 1
_BY_BITS: Final = tuple(
    next((name for power, name in BOUNDS.items() if bits <= power), LARGER) for bits in range(_MOST_BITS + 1)
)


def size_class(size: int) -> str:
    """Return the class of a message of `size` bytes: `4KiB` has those of at most 4,096 bytes, and so on."""
    return _BY_BITS[min((size - 1).bit_length(), _MOST_BITS)]


_BITS: Final = re.compile(r"\d+")


@lru_cache(maxsize=1_024)
def item_bytes(dtype: str) -> int:
    """Bytes of an element: torch's names of types have the bits in them, except for `bool`."""
    bits = _BITS.search(dtype)
    return max(int(bits[0]) // 8, 1) if bits is not None and len(bits[0]) < 4 else 1
