"""Numbers for people: few digits, with their units."""

from __future__ import annotations

from typing import Final

_TIMES: Final = ((1_000, "ns"), (1_000_000, "µs"), (1_000_000_000, "ms"))
_DECIMAL: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def duration(ns: int | None) -> str:
    """Format a duration with three digits: `812 µs`, `4.03 ms`, `61.0 s`; '' for None."""
    if ns is None:
        return ""
    for limit, unit in _TIMES:
        if ns < 0.9995 * limit:
            return f"{_three_digits(ns * 1_000 / limit)} {unit}" if unit != "ns" else f"{ns} ns"
    return f"{_three_digits(ns / 1e9)} s"


def amount(count: int) -> str:
    """Format bytes with three digits: `16 B`, `4.00 KiB`, `1.25 GiB`."""
    size, place = float(count), 0
    while size >= 999.5 and place < len(_SIZES) - 1:
        size, place = size / 1024, place + 1
    return f"{_three_digits(size)} {_SIZES[place]}" if place else f"{count} B"


def per_second(bytes_per_second: float) -> str:
    """Format what is moved in a second with three digits and powers of ten, as nccl-tests does: `24.1 GB`."""
    size, place = bytes_per_second, 0
    while size >= 999.5 and place < len(_DECIMAL) - 1:
        size, place = size / 1000, place + 1
    return f"{_three_digits(size)} {_DECIMAL[place]}"


def size(count: int) -> str:
    """Format the size of files with three digits and powers of ten, as disks are sold: `410 MB`."""
    return per_second(count) if count >= 1000 else f"{count} B"


def share(part: int, whole: int) -> str:
    """Format a share: `63%`; '' of nothing."""
    return f"{part / whole:.0%}" if whole else ""


def _three_digits(number: float) -> str:
    if number >= 99.95:
        return f"{number:,.0f}"
    if number >= 9.995:
        return f"{number:.1f}"
    return f"{number:.2f}"
