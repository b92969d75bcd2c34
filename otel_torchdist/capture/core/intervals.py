"""Timed intervals of threads while they are recorded, and the stack frames that show whether they still run."""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from otel_torchdist.tape.writer import TapeWriter

_frames_by_thread: Final[Any] = sys._current_frames  # pyright: ignore[reportPrivateUsage]  # documented, and its only name
_collect_young: Final[Any] = functools.partial(gc.collect, 0)
_CALLS: Final[Any] = (_collect_young, _frames_by_thread) if sys.version_info < (3, 12) else (_frames_by_thread,)
_call: Final[Any] = operator.methodcaller("__call__")


def frames_by_thread() -> Iterator[dict[int, FrameType]]:
    """Return an iterator over one dictionary: the innermost frame of each thread. Avoids a deadlock in CPython.

    Up to Python 3.11 `sys._current_frames` may collect garbage while it holds the lock on the list of threads. If a
    `threading.local` is freed then, its destructor waits for the same lock forever, with the GIL held. (From 3.12 on,
    garbage is collected between bytecodes only.) So the young generation is collected just before: the few objects
    that the call creates, a frame for each thread, cannot fill it again.

    The iterator runs built-in code only, so no other thread runs between the collection and the call.
    """
    return itertools.islice(map(_call, _CALLS), len(_CALLS) - 1, None)


class RecordedInterval:
    """A timed interval of one thread. The object exists before the record: a signal handler may raise at any moment.

    The hot path does the same without an object, which would cost time in each call.

    Attributes:
        number: Number of its record; 0 if it has none.
        seems_left: Whether its thread seemed to have left the interval at the last check.
    """

    __slots__ = ("entered_ns", "number", "seems_left", "tape")

    def __init__(self, tape: TapeWriter, entered_ns: int) -> None:
        """Initialize without a record."""
        self.tape = tape
        self.entered_ns = entered_ns
        self.number = 0
        self.seems_left = False

    def begin(self, step: int, sequence: int, tail: bytes) -> None:
        """Record the interval as entered. Takes the arguments of `TapeWriter.begin_prepared`."""
        try:
            self.number = self.tape.begin_prepared(self.entered_ns, step, sequence, tail)
        except BaseException:  # a signal handler may raise when the record exists and `number` is not set yet
            self.number = self.tape.find_record_entered_at(self.entered_ns)
            raise

    def is_left(self, is_inside: bool) -> bool:
        """Return whether its thread had left the interval in two consecutive checks.

        The stack of a running thread changes while it is read, so one check is not enough.

        Args:
            is_inside: Whether the thread seems to be in the interval now.
        """
        seemed_left, self.seems_left = self.seems_left, not is_inside
        return seemed_left and self.seems_left
