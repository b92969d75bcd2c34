"""Contains our own errors: logged at a bounded rate, never raised into the training code.

The program's exceptions pass through untouched. Only our own code runs under a guard, but a signal handler may run
inside it: see `origin`.
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
from otel_torchdist.origin import calls_plug_ins, came_after_call, is_programs, pass_on

__all__ = ["ErrorLog", "calls_plug_ins", "came_after_call", "contains", "guarded", "pass_on", "report"]

P = ParamSpec("P")
T = TypeVar("T")

_QUIET_SECONDS = 60.0

_logger = logging.getLogger("otel_torchdist")


@dataclass
class _Errors:
    """The errors of one place: when one was last logged, and how many have come since."""

    logged_at: float
    unlogged: int = 0


@dataclass
class ErrorLog:
    """Logs a place's first error with its traceback, then at most one line a minute with a count.

    It takes no lock, because the hot path reports here: at worst, two threads at once log one line too many.

    Attributes:
        clock: The monotonic time in seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _known: dict[str, _Errors] = field(default_factory=dict[str, _Errors])

    def write(self, where: str, error: BaseException) -> None:
        """Log an error of ours, or only count it when its place was logged less than a minute ago."""
        now = self.clock()
        place = self._known.get(where)
        if place is None:
            self._known[where] = _Errors(logged_at=now)
            _logger.error("internal error in %s; the training is not affected", where, exc_info=error)
            return
        place.unlogged += 1
        if now - place.logged_at < _QUIET_SECONDS:
            return
        _logger.error("internal error in %s, %d more so far, the last: %r", where, place.unlogged, error)
        place.logged_at, place.unlogged = now, 0


_errors = ErrorLog()


def contains(where: str, error: BaseException) -> bool:
    """Report an error of our own; returns False for the program's exceptions, which must propagate.

    Args:
        where: The place, from a fixed set of names: the rate is bounded for each of them.
        error: What was caught there. With ``OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL=true`` none is contained.
    """
    if not isinstance(error, Exception) or is_programs(error):
        return False
    if os.environ.get(OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL, "").strip().lower() == "true":
        return False
    try:
        _errors.write(where, error)
    except Exception as failure:  # a logging handler of the program's
        if is_programs(failure):
            raise
    return True


def report(where: str, error: BaseException) -> None:
    """Report an error of our own, so that it does not reach the user.

    Args:
        where: As for ``contains``.
        error: What was caught there.

    Raises:
        BaseException: ``error`` itself, when ``contains`` does not contain it.
    """
    if not contains(where, error):
        raise error


class guarded:
    """Reports errors of its block or function instead of letting them propagate.

    For cold paths; a guarded function returns None when it failed. Exceptions that are not our own propagate.

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
        """End the block; True suppresses its error."""
        return error is not None and contains(self._where, error)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T | None]:
        """Guard every call of a function."""

        @functools.wraps(function)
        def contained(*args: P.args, **kwargs: P.kwargs) -> T | None:
            with self:
                return function(*args, **kwargs)

        return contained
