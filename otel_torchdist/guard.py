"""Contains our errors: they are logged at a bounded rate, and never raised into the training code.

The program's exceptions propagate unchanged. Only our code runs under a guard, but a signal handler may run inside it:
see `is_from_program`.
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
    """The errors at one location: time of the last log line, and number of errors since."""

    __slots__ = ("logged_at", "unlogged")

    def __init__(self, logged_at: float) -> None:
        self.logged_at = logged_at
        self.unlogged = 0


class ErrorLog:
    """Log of errors: the first error at each location with its traceback, then at most one line a minute with a count.

    It takes no lock, because the hot path reports here: at worst, two threads log one line too many.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Initialize without errors. `clock` returns monotonic seconds."""
        self._clock = clock
        self._known: dict[str, _Errors] = {}

    def write(self, where: str, error: BaseException) -> None:
        """Log an error, or only count it if an error at its location was logged less than a minute ago."""
        now = self._clock()
        errors = self._known.get(where)
        if errors is None:
            self._known[where] = _Errors(logged_at=now)
            _logger.error("internal error in %s; the training is not affected", where, exc_info=error)
            return
        errors.unlogged += 1
        if now - errors.logged_at < _QUIET_SECONDS:
            return
        _logger.error("internal error in %s, %d more so far, the last: %r", where, errors.unlogged, error)
        errors.logged_at, errors.unlogged = now, 0


_errors = ErrorLog()


def contains(where: str, error: BaseException) -> bool:
    """Log one of our errors. Return False for the program's exceptions, which must propagate.

    Args:
        where: The location, from a fixed set of names. The rate is bounded for each location.
        error: The caught exception. With ``OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL=true``, this always returns False.
    """
    if not isinstance(error, Exception) or is_from_program(error):
        return False
    if os.environ.get(OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL, "").strip().lower() == "true":
        return False
    try:
        _errors.write(where, error)
    except Exception as failure:  # from a logging handler of the program
        if is_from_program(failure):
            raise
    return True


def report(where: str, error: BaseException) -> None:
    """Log one of our errors, so that it does not reach the user.

    Args:
        where: As for ``contains``.
        error: The caught exception.

    Raises:
        BaseException: ``error`` itself, if ``contains`` returns False.
    """
    if not contains(where, error):
        raise error


class guarded:
    """Context manager and decorator that logs our errors instead of raising them.

    For cold paths. A guarded function returns None if it failed. The program's exceptions propagate.

    Args:
        where: The location, as for ``report``.
    """

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        """Begin a guarded block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """End the block. Return True to suppress its error."""
        return error is not None and contains(self._where, error)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T | None]:
        """Guard every call of a function."""

        @functools.wraps(function)
        def contained(*args: P.args, **kwargs: P.kwargs) -> T | None:
            with self:
                return function(*args, **kwargs)

        return contained


# --- the owner of an exception ----------------------------------------------------------------------------------------
# Determines whether a caught exception is ours or the program's.
# A signal handler runs between any two instructions of the main thread, a tracer at any line, and another thread can
# raise an exception anywhere (`PyThreadState_SetAsyncExc`). So a timeout of the program may raise inside our code, and
# must not be swallowed. The traceback shows the origin, by modules, because a frozen application has no files. If in
# doubt, the exception is the program's.


F = TypeVar("F", bound=Callable[..., Any])

_OURS: Final = __package__ or "otel_torchdist"
_OUR_THREADS: Final = ("otel-torchdist", "torchdist-")
_TORCH_CALLS: Final = frozenset({"mpmath", "numpy", "sympy", "typing_extensions"})
_CALLED_BY_US: Final = frozenset({"builtins", "torch", _OURS}) | _TORCH_CALLS | sys.stdlib_module_names
"""Packages that our code calls on the program's threads, besides `_CALL_PLUG_INS`."""
_CALL_PLUG_INS: Final = frozenset({"importlib", "logging", "opentelemetry", "warnings", "_frozen_importlib"})
"""Packages that call the program's plug-ins. Exceptions of these plug-ins are a consequence of our call."""
_RAISING_OPCODES: Final = frozenset({opcode.opmap["RAISE_VARARGS"], opcode.opmap["RERAISE"]})
_WITHOUT_MESSAGE: Final = (MemoryError, StopIteration, StopAsyncIteration)
"""Built-in code raises these without a message."""
_WITH_ARGS: Final = 0x04
"""`inspect.CO_VARARGS`, without the import of `inspect`."""
_call_of: Final[Callable[[Any], Any]] = operator.attrgetter("__call__")
_plug_ins: set[CodeType] = set()


def calls_plug_ins(function: F) -> F:
    """Mark one of our functions that calls foreign Python code on purpose, such as a `Work` or backend in Python.

    Errors of that code are contained. Calls of the function cost nothing extra.
    """
    _plug_ins.add(function.__code__)
    return function


def is_from_program(error: BaseException) -> bool:
    """Return whether an exception that our code caught belongs to the program."""
    # The agent has no torch, and exceptions on our threads do not reach the program.
    if "torch" not in sys.modules or _is_our_thread():
        return False
    entries = list(_entries(error.__traceback__))
    if _has_interruption(entries):
        return True
    by_plug_in = False
    for caller, entry in itertools.pairwise(entries):
        by_plug_in = by_plug_in or caller.tb_frame.f_code in _plug_ins or _package(caller.tb_frame) in _CALL_PLUG_INS
        if not by_plug_in and _package(entry.tb_frame) not in _CALLED_BY_US | _CALL_PLUG_INS:
            return True
    innermost = _package(entries[-1].tb_frame) if entries else _OURS
    if innermost in _CALL_PLUG_INS or (by_plug_in and innermost != _OURS):
        return False
    return _is_asynchronous(error, entries) or type(error).__module__.partition(".")[0] not in _CALLED_BY_US


def pass_on(error: BaseException) -> None:
    """Re-raise an exception if it is the program's. For handlers that expect an error of this type.

    Raises:
        BaseException: `error` itself.
    """
    if is_from_program(error):
        raise error


def came_after_call(error: BaseException) -> bool:
    """Return whether an exception was raised after a call into built-in code had returned, not by that call.

    Signal handlers wait until built-in code has returned. Then the interpreter runs them before our next instruction,
    and the result is lost: a rejected operation looks the same as an issued one.

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
    current = threading.get_ident()
    return any(thread.ident == current and thread.name.startswith(_OUR_THREADS) for thread in threading.enumerate())


def _package(frame: FrameType) -> str:
    module = str(frame.f_globals.get("__name__", ""))
    # Methods of a named tuple have a separate module.
    return _OURS if module.startswith("namedtuple_") else module.partition(".")[0]


def _has_interruption(entries: list[TracebackType]) -> bool:
    """Return whether a frame of the traceback interrupted its predecessor, instead of being called by it."""
    foreign = [
        (caller.tb_frame, entry.tb_frame)
        for caller, entry in itertools.pairwise(entries)
        if _package(entry.tb_frame) != _OURS
    ]
    if not foreign:  # the usual case: the signal handlers need not be collected
        return False
    handlers = {code for code in map(_code_of, _handlers()) if code is not None}
    return any(frame.f_code in handlers or _receives_frame(frame, caller) for caller, frame in foreign)


def _receives_frame(frame: FrameType, interrupted: FrameType) -> bool:
    """Return whether a frame has another frame as an argument. Signal handlers and tracers receive the frame."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + bool(code.co_flags & _WITH_ARGS) + code.co_kwonlyargcount]
    values = frame.f_locals
    for name in names:
        value: Any = values.get(name)
        if value is interrupted or (
            type(value) is tuple and any(element is interrupted for element in cast("Any", value))
        ):
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
    code: Any = getattr(function, "__code__", None) or getattr(by_call, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _is_asynchronous(error: BaseException, entries: list[TracebackType]) -> bool:
    """Return whether another thread raised the exception: it has no arguments, and no statement raised it.

    Errors of built-in code have a message.
    """
    if error.args or isinstance(error, _WITHOUT_MESSAGE) or not entries:
        return False
    instructions = entries[-1].tb_frame.f_code.co_code
    index = entries[-1].tb_lasti
    return not (0 <= index < len(instructions) and instructions[index] in _RAISING_OPCODES)
