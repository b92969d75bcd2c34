"""Callbacks at the end of this process, however Python ends it.

Before Python 3.13, `atexit` handlers do not run in processes forked by `multiprocessing`, such as the ranks of a
notebook launcher: these end with `os._exit`, after the finalizers of `multiprocessing`. Processes that it has spawned
run both.
"""

import atexit
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.util import Finalize

_AFTER_CHILDREN = -100
"""Priority of a finalizer that runs after `multiprocessing` has waited for the children of the process."""


def can_start_threads() -> bool:
    """Return whether threads can still be started: Python 3.12 starts none during shutdown, not even in `atexit`."""
    try:
        threading.Thread(target=int, daemon=True).start()
    except RuntimeError:
        return False
    return True


class ProcessEnd:
    """A callback at the end of the process, called at most once. Callbacks run in reverse order of `arm`."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback
        self._process = 0
        self._finalizer: Finalize | None = None

    def arm(self) -> None:
        """Register the callback for the end of this process, but not for its forked children."""
        if self._process == os.getpid():
            return
        self.disarm()
        self._process = os.getpid()
        atexit.register(self._end)
        if multiprocessing.parent_process() is not None:
            self._finalizer = Finalize(None, self._end, exitpriority=_AFTER_CHILDREN)

    def disarm(self) -> None:
        """Cancel the callback."""
        self._process = 0
        atexit.unregister(self._end)
        finalizer, self._finalizer = self._finalizer, None
        if finalizer is not None:
            finalizer.cancel()

    def _end(self) -> None:
        if self._process == os.getpid():
            self._process = 0
            self._callback()


def uncaught_error() -> BaseException | None:
    """Return the exception that ends this process; None if there is none.

    The interpreter leaves it in `sys.last_exc` (`last_value` before Python 3.12). Under `multiprocessing` it is still
    propagating, and torch's launcher has turned it into `sys.exit(1)`; from Python 3.13 on it is no longer available.
    """
    printed: BaseException | None = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    error = printed or sys.exc_info()[1]
    if isinstance(error, SystemExit):
        return error.__context__ if error.code else None
    return error
