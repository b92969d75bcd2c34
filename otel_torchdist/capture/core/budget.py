"""Records less, by steps, if our own code takes too much of a rank's training steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from otel_torchdist.capture.core.part import RecordingPart
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_OVERHEAD_BUDGET
from otel_torchdist.model.recording_level import RecordingLevel

if TYPE_CHECKING:
    from otel_torchdist.capture.core.recorder import Recorder

WINDOW_NS: Final = 5_000_000_000
"""Time over which the share is measured."""
WINDOWS_OVER: Final = 3
"""Number of consecutive windows over the budget before the rank records less. First calls take longer."""
MIN_STEP_NS: Final = 5_000_000
"""Shorter steps are not judged: no training has them, and in toy models every call is a large share of the step."""

_logger = logging.getLogger("otel_torchdist")


class OverheadBudget(RecordingPart):
    """The session part that compares the time of our own code with the budget. Its level never falls on a tape."""

    def __init__(
        self,
        percent: float,
        has_steps: Callable[[], bool],
        checks_values: bool,
        reduce: Callable[[RecordingLevel], None],
    ) -> None:
        """Initialize without a tape.

        Args:
            percent: The budget, in per cent of a step; 0 for no limit.
            has_steps: Returns whether the program's steps are known: those that windows of collectives end are not.
            checks_values: Whether values in tensors are checked.
            reduce: Tells all parts to record less.
        """
        super().__init__()
        self._percent = percent
        self._has_steps = has_steps
        self._checks_values = checks_values
        self._reduce = reduce

    def begins(self, recorder: Recorder) -> None:
        """Start at the level that records everything."""
        super().begins(recorder)
        self._level = self._announced = RecordingLevel.EVERYTHING
        self._windows_over = 0
        self._reduce(self._level)
        self._begin_window(recorder)

    def beat(self, recorder: Recorder) -> None:
        """Reduce the level if the budget was exceeded in several consecutive windows."""
        if not self._percent:
            return
        if self._announced is not self._level:
            # A beat after its announcement: readers must know before a value that is not recorded could seem finite.
            self._level = self._announced
            self._reduce(self._level)
        elapsed_ns = time.monotonic_ns() - self._begun_ns
        if elapsed_ns < WINDOW_NS:
            return
        steps = recorder.step - self._first_step
        percent = (recorder.tape.overhead_ns() - self._overhead_ns) / elapsed_ns * 100
        is_over = self._has_steps() and steps and elapsed_ns / steps >= MIN_STEP_NS and percent > self._percent
        self._windows_over = self._windows_over + 1 if is_over else 0
        self._begin_window(recorder)
        following = self._following(recorder)
        if self._windows_over >= WINDOWS_OVER and following is not None:
            self._announce(recorder, following, percent)
            self._windows_over = 0

    def _begin_window(self, recorder: Recorder) -> None:
        self._begun_ns = time.monotonic_ns()
        self._first_step = recorder.step
        self._overhead_ns = recorder.tape.overhead_ns()

    def _following(self, recorder: Recorder) -> RecordingLevel | None:
        """Return the next level that saves something in this rank; None at the last one."""
        levels = [RecordingLevel.NO_INTERVALS]
        if self._checks_values:
            levels.insert(0, RecordingLevel.NO_VALUES)
        if recorder.native is None:  # natively, the lines cost nothing that can be measured
            levels.append(RecordingLevel.NO_CALL_SITES)
        return next((level for level in levels if level > self._level), None)

    def _announce(self, recorder: Recorder, level: RecordingLevel, percent: float) -> None:
        is_first = self._level is RecordingLevel.EVERYTHING
        self._announced = level
        recorder.tape.set_recording_level(level)
        if is_first:
            _logger.warning(
                "recording took %.3g%% of the last steps of rank %d, more than %s=%g allows: from now on it records "
                "less, by steps, first without %s (metric torchdist_recording_level). All operations are still "
                "recorded",
                percent, recorder.tape.identity.rank, OTEL_PYTHON_TORCHDIST_OVERHEAD_BUDGET, self._percent,
                level.left_out,
            )  # fmt: skip
