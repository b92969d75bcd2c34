"""Origin of exceptions caught in our code: a program's pass, whatever raised them and where; ours are contained."""

from __future__ import annotations

import bdb
import ctypes
import functools
import logging
import signal
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch

from otel_torchdist import guard
from otel_torchdist.guard import came_after_call, guarded, is_from_program
from tests.support.waiting import until

SIGNAL = signal.SIGUSR1
OURS = "otel_torchdist.capture.made_up"
PASSES = "__main__", "trainer", "pytest_timeout", "torch.utils.data._utils.signal_handling", "signal", ""
"""Modules in which handlers are defined: the program's, third-party, torch's, the standard library's, none."""


class Deadline(Exception):
    """An exception of the program."""


def made_in(module: str, source: str, **names: Any) -> Any:
    """The function `f` as a module of this name would define it; no file has to exist, as in a frozen application."""
    variables = {"__name__": module, "__builtins__": __builtins__, **names} if module else dict(names)
    exec(source, variables)
    return variables["f"]


def caught_by_us(source: str, **names: Any) -> BaseException:
    """What a function of ours with the code `source` catches."""
    lines = "".join(f"\n        {line}" for line in source.splitlines())
    code = f"def f():\n    try:{lines}\n    except BaseException as error:\n        return error"
    error = made_in(OURS, code, **names)()
    assert isinstance(error, BaseException)
    return error


@pytest.fixture
def handled() -> Iterator[Callable[[Any], BaseException]]:
    """Runs a handler between two instructions of ours, and returns what we catch."""
    before = signal.getsignal(SIGNAL)

    def interrupt(handler: Any) -> BaseException:
        signal.signal(SIGNAL, handler)
        return caught_by_us("interrupt()", interrupt=functools.partial(signal.raise_signal, SIGNAL))

    yield interrupt
    signal.signal(SIGNAL, before)


@pytest.mark.parametrize("module", PASSES)
@pytest.mark.parametrize("kind", [Deadline, RuntimeError, TimeoutError, KeyError])
def test_handler(handled: Callable[[Any], BaseException], module: str, kind: type[Exception]) -> None:
    """A handler's exception is the program's, wherever the handler is defined and whatever it raises."""
    handler = made_in(module, "def f(signum, frame):\n    raise kind('late')", kind=kind)
    assert is_from_program(handled(handler))


@pytest.mark.parametrize("module", PASSES)
def test_handler_that_lets_go_of_its_frame(handled: Callable[[Any], BaseException], module: str) -> None:
    """A handler is known as long as it is installed, though the frame it was given is gone."""
    assert is_from_program(
        handled(made_in(module, "def f(signum, frame):\n    del frame\n    raise TimeoutError('late')"))
    )


@pytest.mark.parametrize("module", ["__main__", "trainer", ""])
def test_handler_for_once(handled: Callable[[Any], BaseException], module: str) -> None:
    """A handler that installs another one before it raises."""
    once = "def f(signum, frame):\n    del frame\n    reset(signum, SIG_DFL)\n    raise TimeoutError('late')"
    assert is_from_program(handled(made_in(module, once, reset=signal.signal, SIG_DFL=signal.SIG_DFL)))


class Handler:
    """Handlers that are not plain functions."""

    def method(self, signum: int, frame: FrameType | None) -> None:
        """A bound method."""
        raise TimeoutError("late")

    def __call__(self, *_: object) -> None:
        """An object that can be called."""
        del _
        raise TimeoutError("late")


def _with_more(more: str, signum: int, frame: FrameType | None) -> None:
    raise TimeoutError(more)


@pytest.mark.parametrize(
    "handler",
    [
        Handler().method,
        Handler(),
        functools.partial(_with_more, "late"),
        lambda *_: (_ for _ in ()).throw(TimeoutError("late")),
        signal.default_int_handler,
    ],
)
def test_kinds_of_handlers(handled: Callable[[Any], BaseException], handler: Any) -> None:
    """Methods, callable objects, partials, lambdas, and the interpreter's own handler."""
    error = handled(handler)
    assert isinstance(error, KeyboardInterrupt) or is_from_program(error)


def test_handler_deep_below_us() -> None:
    """A handler runs while code that we have called waits, as rank 0 does for the store."""
    before = signal.signal(signal.SIGALRM, made_in("trainer", "def f(signum, frame):\n    raise TimeoutError('late')"))
    begin = functools.partial(signal.setitimer, signal.ITIMER_REAL, 0.05)
    try:
        error = caught_by_us("begin()\nthreading.Event().wait(20)", begin=begin, threading=threading)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert isinstance(error, TimeoutError)
    assert is_from_program(error)


def raised_from_elsewhere(kind: type[BaseException], source: str) -> BaseException:
    """What we catch when another thread raises an exception here while this runs."""
    raise_in: Any = ctypes.pythonapi.PyThreadState_SetAsyncExc
    target = threading.get_ident()
    begun = threading.Event()

    def runs_ours() -> bool:
        return sys._current_frames()[target].f_globals["__name__"] == OURS

    def run() -> None:
        begun.wait()
        until(runs_ours, timeout_s=20)
        raise_in(ctypes.c_ulong(target), ctypes.py_object(kind))

    thread = threading.Thread(target=run)
    thread.start()
    names = {"begin": begun.set, "now": time.monotonic, "pause": time.sleep, "until": time.monotonic() + 20}
    error = caught_by_us(f"begin()\n{source}", **names)
    thread.join()
    return error


class Reported(Exception):
    """An exception with a message of its own."""

    def __init__(self) -> None:
        super().__init__("late")


LOOPS = ["while now() < until: pause(0)"]
if sys.version_info < (3, 13):  # where no `except` around a loop catches what is raised as it jumps back
    LOOPS.append("while now() < until: pass")


@pytest.mark.parametrize("kind", [Deadline, Reported, TimeoutError, RuntimeError])
@pytest.mark.parametrize("source", LOOPS)
def test_asynchronous(kind: type[Exception], source: str) -> None:
    """An exception raised here by another thread is the program's: by its type, or as nothing of ours raises it."""
    error = raised_from_elsewhere(kind, source)
    assert type(error) is kind
    assert is_from_program(error)


def test_tracer() -> None:
    """Leaving a debugger while it steps through our code is the program's exception."""

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_globals.get("__name__") == OURS and frame.f_code.co_name == "f" and frame.f_lineno == 3:
            raise bdb.BdbQuit
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        error = caught_by_us("x = 1")
    finally:
        sys.settrace(before)
    assert is_from_program(error)


class Failing(logging.Handler):
    """A program's log handler that fails itself."""

    def emit(self, record: logging.LogRecord) -> None:
        """Fail."""
        raise ConnectionError("the log server is gone")


OUR_ERRORS = {
    "mistake": "{}['no such key']",
    "too_big": "struct.pack('<B', 256)",
    "of_torch": "torch.ones(2) + torch.ones(3)",
    "in_torch_python": "torch.get_device_module('no such device')",
    "without_message": "raise TimeoutError",
    "assertion": "assert not struct",
    "no_memory": "bytearray(1 << 62)",
    "exhausted": "next(iter(()))",
    "warning": "warnings.warn('a warning of ours')",
    "log": "logger.warning('a line of ours')",
    "import": "import no_such_module_at_all",
    "numbers": "int('x')",
}


@pytest.mark.parametrize("source", OUR_ERRORS.values(), ids=OUR_ERRORS)
def test_errors_of_ours(source: str) -> None:
    """Mistakes of ours, also in what we call: torch, the standard library, warnings as errors, a log handler."""
    logger = logging.Logger("made up")
    logger.addHandler(Failing())
    error = caught_by_us(source, struct=struct, torch=torch, warnings=warnings, logger=logger)
    assert isinstance(error, Exception)
    assert not is_from_program(error)


def test_works_in_python() -> None:
    """What a library's own Work raises when we query it is ours to contain, not the program's."""
    broken = made_in("torchft.work", "def f():\n    raise ConnectionError('lost')")
    poll = guard.calls_plug_ins(made_in(OURS, "def f():\n    is_completed()", is_completed=broken))
    assert not is_from_program(caught_by_us("poll()", poll=poll))
    other = made_in(OURS, "def f():\n    return is_completed()", is_completed=broken)
    assert is_from_program(caught_by_us("poll()", poll=other))


def test_on_our_own_threads() -> None:
    """On our own threads nothing could catch it: it is contained, whatever it is."""
    foreign = made_in("an_exporter", "def f():\n    raise Deadline", Deadline=Deadline)
    found: list[bool] = []

    def run() -> None:
        found.append(is_from_program(caught_by_us("export()", export=foreign)))

    for name in ("otel-torchdist-reader", "a-thread-of-the-program"):
        thread = threading.Thread(target=run, name=name)
        thread.start()
        thread.join()
    assert found == [False, True]


@pytest.mark.parametrize("source", ["interrupt()", "call(interrupt)"])
def test_after_a_call(source: str) -> None:
    """A handler's exception came after our call had returned, unless it came inside Python that we had called."""
    before = signal.signal(SIGNAL, made_in("trainer", "def f(*given):\n    raise Deadline", Deadline=Deadline))
    backend = made_in("torch.distributed.made_up", "def f(interrupt):\n    interrupt()")
    try:
        interrupt = functools.partial(signal.raise_signal, SIGNAL)
        error = caught_by_us(source, interrupt=interrupt, call=backend)
    finally:
        signal.signal(SIGNAL, before)
    assert came_after_call(error) is (source == "interrupt()")


def test_refusals_are_not_taken_for_interruptions() -> None:
    """What built-in code or a backend in Python raises when it refuses a call."""
    refuses = made_in("a_backend", "def f():\n    raise ValueError('no')")
    assert not came_after_call(caught_by_us("torch.ones(2) + torch.ones(3)", torch=torch))
    assert not came_after_call(caught_by_us("refuses()", refuses=refuses))
    assert came_after_call(raised_from_elsewhere(TimeoutError, "while now() < until: pause(0)"))


@pytest.mark.usefixtures("contained")
def test_guard_lets_the_programs_pass(caplog: pytest.LogCaptureFixture) -> None:
    """The exception that a handler raises in a guarded block comes out of it as it is, and nothing is logged."""
    raised = Deadline()

    def handler(signum: int, frame: FrameType | None) -> None:
        raise raised

    before = signal.signal(SIGNAL, handler)
    waits = made_in(OURS, "def f():\n    interrupt()", interrupt=functools.partial(signal.raise_signal, SIGNAL))
    try:
        with pytest.raises(Deadline) as caught:
            guarded("test_guard_lets_the_programs_pass")(waits)()
    finally:
        signal.signal(SIGNAL, before)
    assert caught.value is raised
    assert raised.__context__ is None
    assert not caplog.records


@pytest.mark.usefixtures("contained")
def test_failing_log_is_contained() -> None:
    """A program's log handler that fails on our line does not make our error the program's."""
    handler = Failing()
    logger = logging.getLogger("otel_torchdist")
    logger.addHandler(handler)
    try:
        assert guarded("test_failing_log_is_contained")(made_in(OURS, "def f():\n    {}['x']"))() is None
    finally:
        logger.removeHandler(handler)
