"""The frames of all threads, as `sys._current_frames` returns them, without its deadlock.

Up to Python 3.11 it may collect garbage while it holds the lock on the list of threads. If a `threading.local` is freed
then, its destructor waits for the same lock forever, with the GIL held: the training hangs. (From 3.12 on, garbage is
collected between bytecodes only.) So the young generation is collected just before: the few objects that the call
creates, a frame for each thread, cannot fill it again.
"""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

_frames_by_thread: Final[Any] = sys._current_frames  # pyright: ignore[reportPrivateUsage]  # documented, and its only name
_collect_young: Final[Any] = functools.partial(gc.collect, 0)
_CALLS: Final[Any] = (_collect_young, _frames_by_thread) if sys.version_info < (3, 12) else (_frames_by_thread,)
_call: Final[Any] = operator.methodcaller("__call__")


def frames_by_thread() -> Iterator[dict[int, FrameType]]:
    """Return an iterator over one element, the newest frame of each thread.

    It is built-in code, so no other thread runs between the collection and the call.
    """
    return itertools.islice(map(_call, _CALLS), len(_CALLS) - 1, None)
