"""An interval of one thread as it is recorded: published when it begins, completed when it ends.

The hot path does the same without an object, for which each call would pay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_torchdist.tape.writer import TapeWriter


class RecordedInterval:
    """An interval, which exists before its record does: a signal handler may raise at any moment.

    Attributes:
        tape: Where it is recorded.
        entered_ns: When it was entered.
        number: Number of its record; 0 if it has none.
        seems_left: Whether its thread was outside of it when that was checked last.
    """

    __slots__ = ("entered_ns", "number", "seems_left", "tape")

    def __init__(self, tape: TapeWriter, entered_ns: int) -> None:
        """Initialize without a record."""
        self.tape = tape
        self.entered_ns = entered_ns
        self.number = 0
        self.seems_left = False

    def begin(self, step: int, sequence: int, tail: bytes) -> None:
        """Publish it as entered; the arguments are those of `TapeWriter.begin_prepared`."""
        try:
            self.number = self.tape.begin_prepared(self.entered_ns, step, sequence, tail)
        except BaseException:  # a signal handler's, perhaps between the record and its number
            self.number = self.tape.begun_at(self.entered_ns)
            raise

    def is_left(self, is_inside: bool) -> bool:
        """Return whether its thread was outside of it twice in a row.

        The stack of a running thread is not read at one moment, so once is not enough.

        Args:
            is_inside: Whether the thread seems to be inside now.
        """
        seemed_left, self.seems_left = self.seems_left, not is_inside
        return seemed_left and self.seems_left
