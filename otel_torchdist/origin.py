"""Determines whether an exception that we have caught is ours, or the program's and only passing through.

A signal handler runs between any two instructions of the main thread, a tracer at any line, and another thread can
have an exception raised anywhere (`PyThreadState_SetAsyncExc`). So the exception of a program's timeout may be raised
inside our code, and must not be swallowed there. Its origin is read from the traceback, by modules rather than files,
which a frozen application does not have. In doubt it is the program's.
"""

from __future__ import annotations

import itertools
import opcode
import operator
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, TypeVar, cast

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
    """Whether an exception that our code has caught belongs to the program."""
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
    """Whether an exception was raised after a call into built-in code had returned, and not by that call.

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
    """Whether a frame of the traceback was not called by the one above it, but interrupted it."""
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
    """Whether a frame has another one as an argument: signal handlers and tracers receive the one they interrupt."""
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
    """Whether another thread had the exception raised: it has no arguments, and no statement raised it.

    Errors raised by built-in code have a message.
    """
    if error.args or isinstance(error, _WITHOUT_MESSAGE) or not entries:
        return False
    instructions = entries[-1].tb_frame.f_code.co_code
    place = entries[-1].tb_lasti
    return not (0 <= place < len(instructions) and instructions[place] in _BY_STATEMENT)
