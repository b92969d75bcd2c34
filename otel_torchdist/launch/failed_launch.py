"""Detects the failure of ranks in launchers: torchrun, `accelerate launch`, `multiprocessing.spawn`.

Launchers import torch, and so load this module. Ranks load it, too, so it is small. Until a launch fails, it only wraps
a few constructors.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist import guard
from otel_torchdist.capture.upstream import launch as symbols
from otel_torchdist.capture.upstream.symbol import TorchSymbol

if TYPE_CHECKING:
    from otel_torchdist.launch.launch_end import Codes, LaunchEnd

_MAX_START_NS: Final = 10_000_000_000
"""Upper bound on the time from the start of the first rank to the construction of the context, after the last."""
_CONTEXT: Final = "the end of a launch"


def watch(imported: object) -> None:
    """Wrap the constructors of an imported module that starts ranks or reports their failure."""
    module: Any = imported
    with guard.guarded(_CONTEXT):
        for symbol, act in _ACTS.items():
            if symbol.module == module.__name__:
                _when_constructed(symbol.of(module), act)


def _when_constructed(cls: Any, act: Callable[[Any], object]) -> None:
    if cls is None:  # torch has no such class
        return
    original = cls.__init__

    @functools.wraps(original)
    def __init__(instance: Any, *args: Any, **kwargs: Any) -> None:
        original(instance, *args, **kwargs)
        with guard.guarded(_CONTEXT):
            act(instance)

    cls.__init__ = __init__


def _codes_of_subprocesses(context: Any) -> Codes:
    return {handler.proc.pid: handler.proc.returncode for handler in context.subprocess_handlers.values()}


def _codes_of_processes(context: Any) -> Codes:
    return {process.pid: process.exitcode for process in context.processes}


class _Launch:
    """The last ranks that this process has started."""

    def __init__(self) -> None:
        self._codes: Callable[[], Codes] = dict
        self._since_ns = 0
        self._end: LaunchEnd | None = None

    def remember(self, context: Any, codes_of: Callable[[Any], Codes]) -> None:
        """Remember ranks that are being started.

        Args:
            context: The object that holds their processes.
            codes_of: Returns their exit codes.
        """
        reference = weakref.ref(context)
        self._codes = lambda: codes_of(alive) if (alive := reference()) is not None else {}
        self._since_ns = time.monotonic_ns() - _MAX_START_NS

    def delay_exit(self) -> None:
        """Delay the end of this process until the cause of the failure is announced."""
        if self._end is None:
            from otel_torchdist.launch.launch_end import LaunchEnd  # a late import: only if ranks have failed

            self._end = LaunchEnd()
        self._end.delay_exit({**self._codes()}, self._since_ns)


_LAUNCH: Final = _Launch()
_ACTS: Final[dict[TorchSymbol, Callable[[Any], object]]] = {
    symbols.CHILD_FAILED: lambda error: _LAUNCH.delay_exit(),
    symbols.SUBPROCESS_CONTEXT: lambda context: _LAUNCH.remember(context, _codes_of_subprocesses),
    symbols.PROCESS_CONTEXT: lambda context: _LAUNCH.remember(context, _codes_of_processes),
    symbols.PROCESS_EXCEPTION: lambda error: _LAUNCH.delay_exit(),
}
"""What to do when an object of a class has been constructed."""
