"""Contains our own errors: logged at a bounded rate, never raised into the training code.

The program's exceptions pass through untouched. Only our own code runs under a guard, but a signal handler may run
inside it: see `is_programs`.
"""

from __future__ import annotations

import functools
import itertools
import logging
import opcode
import operator
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, ParamSpec, TypeVar, cast

from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL

P = ParamSpec("P")
T = TypeVar("T")

_QUIET_SECONDS = 60.0

_logger = logging.getLogger("otel_torchdist")


class _Errors:
    """The errors of one place: when one was last logged, and how many have come since."""

    __slots__ = ("logged_at", "unlogged")

    def __init__(self, logged_at: float) -> None:
        self.logged_at = logged_at
        self.unlogged = 0


class ErrorLog:
    """Logs a place's first error with its traceback, then at most one line a minute with a count.

    It takes no lock, because the hot path reports here: at worst, two threads at once log one line too many.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Log with the given clock: the monotonic time in seconds."""
        self._clock = clock
        self._known: dict[str, _Errors] = {}

    def write(self, where: str, error: BaseException) -> None:
        """Log an error of ours, or only count it when its place was logged less than a minute ago."""
        now = self._clock()
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


# --- whose exception it is --------------------------------------------------------------------------------------------
# Determines whether an exception that we have caught is ours, or the program's and only passing through.
# A signal handler runs between any two instructions of the main thread, a tracer at any line, and another thread can
# have an exception raised anywhere (`PyThreadState_SetAsyncExc`). So the exception of a program's timeout may be raised
# inside our code, and must not be swallowed there. Its origin is read from the traceback, by modules rather than files,
# which a frozen application does not have. In doubt it is the program's.


F = TypeVar("F", bound=Callable[..., Any])

_OURS: Final = __package__ or "otel_torchdist"
_OUR_THREADS: Final = ("otel-torchdist", "torchdist-")
_TORCH_CALLS: Final = frozenset({"mpmath", "numpy", "sympy", "typing_extensions"})
_CALLED_BY_US: Final = frozenset({"builtins", "torch", _OURS}) | _TORCH_CALLS | sys.stdlib_module_names
"""Packages that our code calls on the program's threads, besides those below."""
_CALLS_OTHERS: Final = frozenset({"importlib", "logging", "opentelemetry", "warnings", "_frozen_importlib"})
"""Packages that call plug-ins which the program has registered: what these raise is a consequence of our call."""
_BY_STATEMENT: Final = frozenset({opcode.opmap["RAISE_VARARGS"], opcode.opmap["RERAISE"]})
_WITHOUT_MESSAGE: Final = (MemoryError, StopIteration, StopAsyncIteration)
"""Built-in code raises these without a message."""
_WITH_ARGS: Final = 0x04
_call_of: Final[Callable[[Any], Any]] = operator.attrgetter("__call__")
_plug_ins: set[CodeType] = set()


def calls_plug_ins(function: F) -> F:
    """Mark a function of ours that calls foreign Python code on purpose: a `Work` or backend in Python.

    Its errors are ours to contain. Costs nothing when the function is called.
    """
    _plug_ins.add(function.__code__)
    return function


def is_programs(error: BaseException) -> bool:
    """Return whether an exception that our code has caught belongs to the program."""
    # The agent has no torch, and the program cannot catch what is raised on our own threads.
    if "torch" not in sys.modules or _is_our_thread():
        return False
    entries = list(_entries(error.__traceback__))
    if _has_interruption(entries):
        return True
    by_plug_in = False
    for caller, entry in itertools.pairwise(entries):
        by_plug_in = by_plug_in or caller.tb_frame.f_code in _plug_ins or _package(caller.tb_frame) in _CALLS_OTHERS
        if not by_plug_in and _package(entry.tb_frame) not in _CALLED_BY_US | _CALLS_OTHERS:
            return True
    innermost = _package(entries[-1].tb_frame) if entries else _OURS
    if innermost in _CALLS_OTHERS or (by_plug_in and innermost != _OURS):
        return False
    return _is_asynchronous(error, entries) or type(error).__module__.partition(".")[0] not in _CALLED_BY_US


def pass_on(error: BaseException) -> None:
    """Re-raise an exception if it is the program's: for places that expect an error of this type.

    Raises:
        BaseException: `error` itself.
    """
    if is_programs(error):
        raise error


def came_after_call(error: BaseException) -> bool:
    """Return whether an exception was raised after a call into built-in code had returned, and not by that call.

    Signal handlers wait until built-in code has returned. The interpreter then runs them before our next instruction,
    and the result is lost: an operation that was refused looks the same as one that was issued.

    Args:
        error: The exception that the calling frame has caught.
    """
    entries = list(_entries(error.__traceback__))
    return _has_interruption(entries[:2]) or (len(entries) < 2 and _is_asynchronous(error, entries))


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_our_thread() -> bool:
    this = threading.get_ident()
    return any(thread.ident == this and thread.name.startswith(_OUR_THREADS) for thread in threading.enumerate())


def _package(frame: FrameType) -> str:
    module = str(frame.f_globals.get("__name__", ""))
    # The methods of a named tuple have a module of their own.
    return _OURS if module.startswith("namedtuple_") else module.partition(".")[0]


def _has_interruption(entries: list[TracebackType]) -> bool:
    """Return whether a frame of the traceback was not called by the one above it, but interrupted it."""
    others = [
        (caller.tb_frame, entry.tb_frame)
        for caller, entry in itertools.pairwise(entries)
        if _package(entry.tb_frame) != _OURS
    ]
    if not others:  # the usual case, in which the handlers of all signals need not be collected
        return False
    handlers = {code for code in map(_code_of, _handlers()) if code is not None}
    return any(frame.f_code in handlers or _is_given(frame, caller) for caller, frame in others)


def _is_given(frame: FrameType, interrupted: FrameType) -> bool:
    """Return whether a frame has another one as an argument: signal handlers and tracers receive the one they interrupt."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + bool(code.co_flags & _WITH_ARGS) + code.co_kwonlyargcount]
    values = frame.f_locals
    for name in names:
        value: Any = values.get(name)
        if value is interrupted or (type(value) is tuple and any(one is interrupted for one in cast("Any", value))):
            return True
    return False


def _handlers() -> Iterator[Any]:
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler):
            yield handler


def _code_of(handler: Any) -> CodeType | None:
    function: Any = handler
    while type(function) is partial:
        function = function.func
    by_call: Any = _call_of(cast("Any", type(function)))
    found: Any = getattr(function, "__code__", None) or getattr(by_call, "__code__", None)
    return found if isinstance(found, CodeType) else None


def _is_asynchronous(error: BaseException, entries: list[TracebackType]) -> bool:
    """Return whether another thread had the exception raised: it has no arguments, and no statement raised it.

    Errors raised by built-in code have a message.
    """
    if error.args or isinstance(error, _WITHOUT_MESSAGE) or not entries:
        return False
    instructions = entries[-1].tb_frame.f_code.co_code
    place = entries[-1].tb_lasti
    return not (0 <= place < len(instructions) and instructions[place] in _BY_STATEMENT)
