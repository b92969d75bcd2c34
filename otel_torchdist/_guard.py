"""Contains our own errors: logged at a bounded rate, never raised into somebody's training.

Errors of the user pass through untouched, because only our own code runs under a guard.
"""

import functools
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import ParamSpec, TypeVar

from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL

P = ParamSpec("P")
T = TypeVar("T")

_QUIET_SECONDS = 60.0

_logger = logging.getLogger("otel_torchdist")


@dataclass
class _Place:
    """What is known of the errors of one place: when a line was last written, and how many came since."""

    logged_at: float
    unlogged: int = 0


@dataclass
class ErrorLog:
    """Writes a place's first error with its traceback, then at most one line a minute with a count.

    It takes no lock, because the hot path reports here: two threads at once cost a line too many at worst.

    Attributes:
        clock: The monotonic time in seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _places: dict[str, _Place] = field(default_factory=dict[str, _Place])

    def write(self, where: str, error: BaseException) -> None:
        """Log an error of ours, or only count it when its place was logged less than a minute ago."""
        now = self.clock()
        place = self._places.get(where)
        if place is None:
            self._places[where] = _Place(logged_at=now)
            _logger.error("internal error in %s; the training is not affected", where, exc_info=error)
            return
        place.unlogged += 1
        if now - place.logged_at < _QUIET_SECONDS:
            return
        _logger.error("internal error in %s, %d more so far, the last: %r", where, place.unlogged, error)
        place.logged_at, place.unlogged = now, 0


_errors = ErrorLog()


def report(where: str, error: BaseException) -> None:
    """Take an error of our own out of the user's way.

    Args:
        where: The place, from a fixed set of names: the rate is bounded for each of them.
        error: What was caught there.

    Raises:
        BaseException: ``error`` itself, when ``OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL=true``.
    """
    if os.environ.get(OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL, "").strip().lower() == "true":
        raise error
    _errors.write(where, error)


class guard:
    """Reports what its block or function raises, instead of letting it through.

    For cold paths; a guarded function returns None when it failed. ``KeyboardInterrupt`` and the like pass.

    Args:
        where: The place, as for ``report``.
    """

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        """Begin a guarded block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """End the block; True keeps its error from the caller."""
        if not isinstance(error, Exception):
            return False
        report(self._where, error)
        return True

    def __call__(self, function: Callable[P, T]) -> Callable[P, T | None]:
        """Guard every call of a function."""

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> T | None:
            with self:
                return function(*args, **kwargs)

        return guarded
