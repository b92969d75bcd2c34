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

if TYPE_CHECKING:
    from otel_torchdist.launch.launch_end import Codes, LaunchEnd

_FAILURES: Final = "torch.distributed.elastic.multiprocessing.errors"
_SUBPROCESSES: Final = "torch.distributed.elastic.multiprocessing.api"
_MAX_START_NS: Final = 10_000_000_000
"""Maximum time in ns to start the processes of a context, which is constructed after the last start."""
_CONTEXT: Final = "the end of a launch"


def watch(imported: object) -> None:
    """Wrap the constructors of an imported module that starts ranks or reports their failure."""
    module: Any = imported
    with guard.guarded(_CONTEXT):
        if module.__name__ == _FAILURES:
            _when_constructed(module.ChildFailedError, lambda error: _LAUNCH.fail())
        elif module.__name__ == _SUBPROCESSES:
            _when_constructed(module.SubprocessContext, lambda context: _LAUNCH.begin(context, _codes_of_subprocesses))
        else:
            _when_constructed(module.ProcessContext, lambda context: _LAUNCH.begin(context, _codes_of_processes))
            _when_constructed(module.ProcessException, lambda error: _LAUNCH.fail())


def _when_constructed(cls: Any, act: Callable[[Any], object]) -> None:
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


class _StartedRanks:
    """The last ranks that this process has started."""

    def __init__(self) -> None:
        self._codes: Callable[[], Codes] = dict
        self._since_ns = 0
        self._end: LaunchEnd | None = None

    def begin(self, context: Any, codes_of: Callable[[Any], Codes]) -> None:
        """Remember ranks that are being started.

        Args:
            context: The object that holds their processes.
            codes_of: Returns their exit codes.
        """
        reference = weakref.ref(context)
        self._codes = lambda: codes_of(alive) if (alive := reference()) is not None else {}
        self._since_ns = time.monotonic_ns() - _MAX_START_NS

    def fail(self) -> None:
        """Delay the end of this process until the cause of the failure is announced."""
        if self._end is None:
            from otel_torchdist.launch.launch_end import LaunchEnd  # a late import: only if ranks have failed

            self._end = LaunchEnd()
        self._end.delay_exit({**self._codes()}, self._since_ns)


_LAUNCH: Final = _StartedRanks()
