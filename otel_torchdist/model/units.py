"""Formats durations and sizes with few digits and a unit, and defines size classes for labels.

There are few enough size classes for a metric label, and latencies differ between them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_TIMES: Final = ((1_000, "ns"), (1_000_000, "µs"), (1_000_000_000, "ms"))
_DECIMAL: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def duration(ns: int | None) -> str:
    """Format a duration with three digits: `812 µs`, `4.03 ms`, `61.0 s`; '' for None."""
    if ns is None:
        return ""
    ns = max(ns, 0)
    for limit, unit in _TIMES:
        if ns < 0.9995 * limit:
            return f"{_three_digits(ns * 1_000 / limit)} {unit}" if unit != "ns" else f"{ns} ns"
    return f"{_three_digits(ns / 1e9)} s"


def seconds(length_s: float, digits: int = 1) -> str:
    """Format an elapsed time for a sentence: `12.0 s`. Never below zero.

    Clock differences between nodes, and late observations, may put an end before its start.
    """
    return f"{passed(length_s):.{digits}f} s"


def passed(length: float) -> float:
    """Return an elapsed time in any unit, or 0 if the end is before the start."""
    return length if length > 0 else 0.0


def amount(count: int) -> str:
    """Format bytes with three digits: `16 B`, `4.00 KiB`, `1.25 GiB`."""
    size, place = float(count), 0
    while size >= 999.5 and place < len(_SIZES) - 1:
        size, place = size / 1024, place + 1
    return f"{_three_digits(size)} {_SIZES[place]}" if place else f"{count} B"


def per_second(bytes_per_second: float) -> str:
    """Format bytes per second with three digits and powers of ten, as nccl-tests does: `24.1 GB`."""
    size, place = bytes_per_second, 0
    while size >= 999.5 and place < len(_DECIMAL) - 1:
        size, place = size / 1000, place + 1
    return f"{_three_digits(size)} {_DECIMAL[place]}"


def size(count: int) -> str:
    """Format the size of files with three digits and powers of ten, as disks are sold: `410 MB`."""
    return per_second(count) if count >= 1000 else f"{count} B"


def share(part: int, whole: int) -> str:
    """Format a share: `63%`; '' if the whole is 0."""
    return f"{part / whole:.0%}" if whole else ""


def _three_digits(number: float) -> str:
    if number >= 99.95:
        return f"{number:,.0f}"
    if number >= 9.995:
        return f"{number:.1f}"
    return f"{number:.2f}"


LARGER: Final = "larger"
BOUNDS: Final = {12: "4KiB", 16: "64KiB", 20: "1MiB", 24: "16MiB", 28: "256MiB"}
"""Names of the size classes, by the exponent of the largest size in each, a power of two."""
_MAX_BITS: Final = max(BOUNDS) + 1
_BY_BITS: Final = tuple(
    next((name for power, name in BOUNDS.items() if bits <= power), LARGER) for bits in range(_MAX_BITS + 1)
)


def size_class(size: int) -> str:
    """Return the size class of a message: `4KiB` for sizes up to 4,096 bytes, and so on."""
    return _BY_BITS[min((size - 1).bit_length(), _MAX_BITS)]


_BITS: Final = re.compile(r"\d+")


@lru_cache(maxsize=1_024)
def item_bytes(dtype: str) -> int:
    """Return the bytes of an element. torch's type names contain the bits, except for `bool`."""
    bits = _BITS.search(dtype)
    return max(int(bits[0]) // 8, 1) if bits is not None and len(bits[0]) < 4 else 1
