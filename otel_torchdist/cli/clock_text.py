"""How times are shown."""

from __future__ import annotations

import time
from datetime import datetime, timezone


def day_and_time(wall_ns: int) -> str:
    """`2026-11-21 12:46:05`, local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_ns // 1_000_000_000))


def time_of_day(wall_ns: int) -> str:
    """`12:46:05.1`, local time."""
    tenths = wall_ns // 100_000_000
    return f"{time.strftime('%H:%M:%S', time.localtime(tenths // 10))}.{tenths % 10}"


def iso_time(wall_ns: int) -> str:
    """`2026-11-21T12:46:05.123456Z`."""
    moment = datetime.fromtimestamp(wall_ns // 1_000_000_000, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{wall_ns // 1000 % 1_000_000:06d}Z"


def length(seconds: float) -> str:
    """`12 ms`, `8.1 s`, `2 min 5 s`, `3 h 20 min`, `2 d 4 h`."""
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller, smaller_unit in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {smaller_unit}"
    return f"{whole} s"
