"""`expect_wait`: lets users announce that ranks will wait for each other."""

from __future__ import annotations

import logging
import math
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final

from otel_torchdist import guard
from otel_torchdist.capture.core.part import RecordingPart

if TYPE_CHECKING:
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.torch_api import Patches

MAX_WAIT_S: Final = 10 * 365 * 86_400.0

_logger = logging.getLogger("otel_torchdist")
_active: Expectations | None = None
"""The instance that records expectations; a process has at most one capture."""


class ExpectedWait:
    """An expected wait. It expires, or ends with the `with` block."""

    def __init__(self, until_ns: int) -> None:
        self._until_ns = until_ns
        if _active is not None:
            _active.add(self, until_ns)

    def end(self) -> None:
        """End the expectation."""
        if _active is not None:
            _active.remove(self)

    def __enter__(self) -> ExpectedWait:
        """Return the expectation. It began with its construction."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the expectation, also after an exception."""
        self.end()


def expect_wait(seconds: float) -> ExpectedWait:
    """Announce that ranks will wait for each other for a while, which is not a stall.

    Use it for work that one rank does alone (an evaluation, a download, a breakpoint) and for a worker that waits for
    requests::

        with expect_wait(600):
            evaluate(model)

    Does nothing while instrumentation is off. Deaths and mismatched calls are still reported.

    Args:
        seconds: Maximum duration from now on. Without `with`, the wait is expected for the whole duration. `math.inf`
            for no limit.
    """
    if not seconds >= 0:
        _logger.warning("expect_wait(%r): ignored, not a non-negative number of seconds", seconds)
        seconds = 0.0
    duration_s = MAX_WAIT_S if math.isinf(seconds) else min(float(seconds), MAX_WAIT_S)
    return ExpectedWait(time.monotonic_ns() + round(duration_s * 1e9))


class Expectations(RecordingPart):
    """The expected waits of this process. The tape holds the latest expiry."""

    def __init__(self) -> None:
        super().__init__()
        self._until_ns: dict[ExpectedWait, int] = {}

    def hook(self, patches: Patches) -> None:
        """Start handling `expect_wait`."""
        global _active
        _active = self

    def unhook(self) -> None:
        """Stop handling `expect_wait`."""
        global _active
        _active = None
        self._until_ns.clear()

    def begins(self, recorder: Recorder) -> None:
        """Write the current expectations to a new tape."""
        super().begins(recorder)
        self._write()

    def add(self, expectation: ExpectedWait, until_ns: int) -> None:
        """Add an expectation and drop expired ones."""
        now_ns = time.monotonic_ns()
        self._until_ns = {wait: until for wait, until in self._until_ns.items() if until > now_ns}
        self._until_ns[expectation] = until_ns
        self._write()

    def remove(self, expectation: ExpectedWait) -> None:
        """Remove an expectation."""
        self._until_ns.pop(expectation, None)
        self._write()

    def _write(self) -> None:
        recorder = self.recorder
        if recorder is not None:
            with guard.guarded("expect_wait"):
                recorder.tape.expect_until(max(self._until_ns.values(), default=0))
