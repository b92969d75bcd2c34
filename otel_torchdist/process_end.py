"""Calls back when this process ends, however Python comes to it.

Before Python 3.13 `atexit` handlers do not run in a process that `multiprocessing` has forked (the ranks of a notebook
launcher are such processes): it ends by `os._exit`, after finalizers of `multiprocessing`'s own. A process that it has
spawned runs both.
"""

import atexit
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.util import Finalize

_AFTER_CHILDREN = -100
"""`multiprocessing` has waited for the children of the process by then."""


class ProcessEnd:
    """One callback, called at most once in a process, the one armed last first."""

    def __init__(self, callback: Callable[[], object]) -> None:
        """Prepare; nothing is registered yet."""
        self._callback = callback
        self._process = 0
        self._finalizer: Finalize | None = None

    def arm(self) -> None:
        """Have the callback called at the end of this very process; what it has forked does not count."""
        if self._process == os.getpid():
            return
        self.disarm()
        self._process = os.getpid()
        atexit.register(self._end)
        if multiprocessing.parent_process() is not None:
            self._finalizer = Finalize(None, self._end, exitpriority=_AFTER_CHILDREN)

    def disarm(self) -> None:
        """Take it back."""
        self._process = 0
        atexit.unregister(self._end)
        finalizer, self._finalizer = self._finalizer, None
        if finalizer is not None:
            finalizer.cancel()

    def _end(self) -> None:
        if self._process == os.getpid():
            self._process = 0
            self._callback()
