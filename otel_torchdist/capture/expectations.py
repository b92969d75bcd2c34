"""`expect_wait`: what a user says who knows that others will wait."""

from __future__ import annotations

import logging
import math
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final

from otel_torchdist import guard

if TYPE_CHECKING:
    from otel_torchdist.capture.recorder import Recorder

LONGEST_S: Final = 10 * 365 * 86_400.0

_logger = logging.getLogger("otel_torchdist")
_active: Expectations | None = None
"""Where expectations are written: there is at most one capture in a process."""


class Expectation:
    """Something that takes its time; ends by itself, or with the `with` block."""

    def __init__(self, until_ns: int) -> None:
        self._until_ns = until_ns
        if _active is not None:
            _active.add(self, until_ns)

    def end(self) -> None:
        """It is over."""
        if _active is not None:
            _active.remove(self)

    def __enter__(self) -> Expectation:
        """Nothing more happens: it has begun already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """It is over, however the block ended."""
        self.end()


def expect_wait(seconds: float) -> Expectation:
    """Say that until then nobody should call it a stall if others wait for this rank, or this rank for others.

    For what one rank does alone (an evaluation, a download, a breakpoint) and for a worker that waits for requests::

        with expect_wait(600):
            evaluate(model)

    Does nothing while instrumentation is off. Deaths and calls that do not fit are told nevertheless.

    Args:
        seconds: For how long at most, from now on; without `with` it lasts as long as that. `math.inf` for ever.
    """
    if not seconds >= 0:
        _logger.warning("expect_wait(%r): not a number of seconds of at least 0; nothing is expected", seconds)
        seconds = 0.0
    lasts_s = LONGEST_S if math.isinf(seconds) else min(float(seconds), LONGEST_S)
    return Expectation(time.monotonic_ns() + round(lasts_s * 1e9))


class Expectations:
    """Writes to the tape until when something is expected to take its time."""

    def __init__(self) -> None:
        """Nothing is expected."""
        self._until_ns: dict[Expectation, int] = {}
        self._recorder: Recorder | None = None

    def hook(self) -> None:
        """Listen to `expect_wait`."""
        global _active
        _active = self

    def unhook(self) -> None:
        """Stop listening."""
        global _active
        _active = None
        self._until_ns.clear()

    def write_to(self, recorder: Recorder | None) -> None:
        """Write to another tape from now on, or to none."""
        self._recorder = recorder
        self._write()

    def add(self, expectation: Expectation, until_ns: int) -> None:
        """One more."""
        now_ns = time.monotonic_ns()
        self._until_ns = {one: until for one, until in self._until_ns.items() if until > now_ns}
        self._until_ns[expectation] = until_ns
        self._write()

    def remove(self, expectation: Expectation) -> None:
        """One less."""
        self._until_ns.pop(expectation, None)
        self._write()

    def _write(self) -> None:
        recorder = self._recorder
        if recorder is not None:
            with guard.guarded("expect_wait"):
                recorder.tape.expect_until(max(self._until_ns.values(), default=0))
