"""The progress of long work, passed to a display if this process has one.

Readers and writers take a plain callback. Work that several callers share reports with `progress` and `track`, which do
nothing unless a command shows progress.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias, TypeVar

Advance: TypeAlias = Callable[[int], object]
"""Called with the number of items, calls or bytes that have been completed since the last call."""

_Item = TypeVar("_Item")


def unreported(amount: int) -> None:
    """Ignore progress; the default of readers and writers."""


class ProgressDisplay(Protocol):
    """A display of progress, such as a bar on a terminal."""

    def showing(self, title: str, unit: str, total: int | None) -> AbstractContextManager[Advance]:
        """Show a piece of work while the block runs; yields the function to call with completed amounts.

        Args:
            title: A verb in its -ing form and an object: `Reading tapes`.
            unit: Plural noun of the counted items; '' to count nothing.
            total: Number of items; None if unknown.
        """
        ...


_display: ProgressDisplay | None = None


@contextlib.contextmanager
def displayed_on(display: ProgressDisplay) -> Generator[None]:
    """Show the progress of all work in this block on a display."""
    global _display
    _display = display
    try:
        yield
    finally:
        _display = None


@contextlib.contextmanager
def progress(title: str, unit: str = "", total: int | None = None) -> Generator[Advance]:
    """Report the progress of the work in this block; yields the function to call with completed amounts.

    Args:
        title: See `ProgressDisplay.showing`.
        unit: See `ProgressDisplay.showing`.
        total: See `ProgressDisplay.showing`.
    """
    if _display is None:
        yield unreported
        return
    with _display.showing(title, unit, total) as advance:
        yield advance


def track(
    items: Iterable[_Item],
    title: str,
    unit: str,
    total: int | None = None,
    size: Callable[[_Item], int] = lambda _: 1,
) -> Iterator[_Item]:
    """Yield items, and report how many of them have been processed.

    Args:
        items: The items.
        title: See `ProgressDisplay.showing`.
        unit: See `ProgressDisplay.showing`.
        total: See `ProgressDisplay.showing`.
        size: Returns the amount that an item counts for.
    """
    with progress(title, unit, total) as advance:
        for item in items:
            yield item
            advance(size(item))
