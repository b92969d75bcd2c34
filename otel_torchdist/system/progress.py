"""The report of readers and writers on their progress: a plain callback."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Advance: TypeAlias = Callable[[int], object]
"""Called with the number of items, calls or bytes that have been completed since the last call."""


def unreported(amount: int) -> None:
    """Ignore progress; the default of readers and writers."""
