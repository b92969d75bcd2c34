"""Sees that ranks fail which this process has started, as torchrun, `accelerate launch` and `multiprocessing.spawn` do.

All of these import torch, and so come by here. So do ranks, which start none: this is as small as can be. A launch that
ends well only has a few wrapped constructors.
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
_STARTING_NS: Final = 10_000_000_000
"""How long it may take to start the processes of a context, which is made when the last one has been started."""
_WHERE: Final = "the end of a launch"


def watch(imported: object) -> None:
    """Watch for failures of ranks: a module that starts them, or reports them, has just been imported."""
    module: Any = imported
    with guard.guarded(_WHERE):
        if module.__name__ == _FAILURES:
            _when_made(module.ChildFailedError, lambda error: _LAUNCH.fail())
        elif module.__name__ == _SUBPROCESSES:
            _when_made(module.SubprocessContext, lambda context: _LAUNCH.begin(context, _codes_of_subprocesses))
        else:
            _when_made(module.ProcessContext, lambda context: _LAUNCH.begin(context, _codes_of_processes))
            _when_made(module.ProcessException, lambda error: _LAUNCH.fail())


def _when_made(made_class: Any, act: Callable[[Any], object]) -> None:
    original = made_class.__init__

    @functools.wraps(original)
    def __init__(made: Any, *args: Any, **kwargs: Any) -> None:
        original(made, *args, **kwargs)
        with guard.guarded(_WHERE):
            act(made)

    made_class.__init__ = __init__


def _codes_of_subprocesses(context: Any) -> Codes:
    return {one.proc.pid: one.proc.returncode for one in context.subprocess_handlers.values()}


def _codes_of_processes(context: Any) -> Codes:
    return {one.pid: one.exitcode for one in context.processes}


class _StartedRanks:
    """The ranks that this process has started last."""

    def __init__(self) -> None:
        self._codes: Callable[[], Codes] = dict
        self._since_ns = 0
        self._end: LaunchEnd | None = None

    def begin(self, context: Any, codes_of: Callable[[Any], Codes]) -> None:
        """Note that ranks are being started.

        Args:
            context: The object that holds their processes.
            codes_of: Returns their exit codes.
        """
        kept = weakref.ref(context)
        self._codes = lambda: codes_of(found) if (found := kept()) is not None else {}
        self._since_ns = time.monotonic_ns() - _STARTING_NS

    def fail(self) -> None:
        """Have the end of this process wait for what is said of its ranks."""
        if self._end is None:
            from otel_torchdist.launch.launch_end import LaunchEnd  # only where ranks have failed

            self._end = LaunchEnd()
        self._end.hold({**self._codes()}, self._since_ns)


_LAUNCH: Final = _StartedRanks()
