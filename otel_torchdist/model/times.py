"""Formats of times and of durations in sentences."""

from __future__ import annotations

import time
from datetime import datetime, timezone

from otel_torchdist.model.text import elapsed, seconds


def day_and_time(wall_ns: int) -> str:
    """Format a time as `2026-11-21 12:46:05`, local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_ns // 1_000_000_000))


def time_of_day(wall_ns: int) -> str:
    """Format a time as `12:46:05.1`, local time."""
    tenths = wall_ns // 100_000_000
    return f"{time.strftime('%H:%M:%S', time.localtime(tenths // 10))}.{tenths % 10}"


def iso_time(wall_ns: int) -> str:
    """Format a time as `2026-11-21T12:46:05.123456Z`."""
    moment = datetime.fromtimestamp(wall_ns // 1_000_000_000, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{wall_ns // 1000 % 1_000_000:06d}Z"


def length(length_s: float) -> str:
    """Format a duration as `12 ms`, `8.1 s`, `2 min 5 s`, `3 h 20 min`, `2 d 4 h`."""
    return f"{elapsed(length_s) * 1000:.0f} ms" if length_s < 0.1 else seconds(length_s)
