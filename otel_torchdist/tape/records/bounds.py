"""Bounds of the numbers in records.

A tape has 64 unsigned bits for a time, a position or a size. OTLP, archives and MessagePack have 63, and an exporter
logs an error for each larger number. A damaged record does not pass its CRC, so such a number is a forged one, or the
size of a tensor that takes no memory (`expand`, device `meta`). Everything that is made of a record is checked here.
"""

from __future__ import annotations

from typing import Final

from otel_torchdist.tape.layout import MAX_TIME_NS

MAX_NUMBER: Final = MAX_TIME_NS
"""Upper bound of times in nanoseconds, positions and sizes. The sum of two fits 63 bits."""
_BITS: Final = MAX_NUMBER.bit_length()


def check_position(number: int, time_ns: int, step: int, sequence: int) -> None:
    """Check the three numbers that say which record it is.

    Raises:
        ValueError: One is negative or larger than `MAX_NUMBER`.
    """
    if (time_ns | step | sequence) >> _BITS:  # also of a negative one, whose upper bits are all set
        raise ValueError(f"record {number} is at an impossible time or position")


def clipped(size: int) -> int:
    """Clip a size or a count to `MAX_NUMBER`: its record stays evidence of a stall."""
    return min(size, MAX_NUMBER)
