"""Records the steps of optimizers as activities of their thread.

torch calls a hook before a step, and another after it unless the step raised. If a step raised, its end is recorded
when its thread begins the next step, or when a check finds the thread outside of any step.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from otel_torchdist.capture.core.intervals import RecordedInterval, frames_by_thread
from otel_torchdist.capture.core.torch_api import HOOKED_STEP, backward_id
from otel_torchdist.model.kinds import ActivityKind, How
from otel_torchdist.model.names import SPARE_OF_LABELS
from otel_torchdist.tape.figures import FigureWord
from otel_torchdist.tape.layout import prepare_activity

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from torch.optim import Optimizer

    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.tape.writer import TapeWriter

_FILE: Final = HOOKED_STEP.co_filename
_NAME: Final = HOOKED_STEP.co_name
MAX_IN_STEP: Final = 16
"""Maximum number of recorded optimizer steps per training step. One optimizer per parameter would make hundreds."""
MIN_AGE_NS: Final = 1_000_000_000
"""Minimum age in ns of steps whose threads are checked. Few steps get this old."""


class _RecordedStep(RecordedInterval):
    """The last optimizer step of a thread.

    Attributes:
        optimizer: The optimizer's `id`.
        in_backward: Whether a hook of a backward pass runs the step. The pass then includes the time of the step.
        is_over: Whether its end is recorded.
    """

    __slots__ = ("in_backward", "is_over", "optimizer")

    def __init__(self, tape: TapeWriter, optimizer: int) -> None:
        super().__init__(tape, time.monotonic_ns())
        self.optimizer = optimizer
        self.in_backward = backward_id() != -1
        self.is_over = False

    def complete(self, how: How) -> None:
        """Record the end, unless it is recorded."""
        if self.number and not self.is_over:
            ended_ns = time.monotonic_ns()
            self.tape.complete(self.number, self.entered_ns, ended_ns, how)
            if how is How.CALL and not self.in_backward:
                self.tape.add_time(FigureWord.OPTIMIZER_NS, ended_ns - self.entered_ns)
        self.is_over = True


class OptimizerSteps:
    """Recorder of the outermost optimizer steps of each thread.

    Attributes:
        is_reduced: Whether no step is recorded, to save time.
    """

    def __init__(self) -> None:
        self.is_reduced = False
        self._by_thread = dict[int, _RecordedStep]()
        self._step: int = -1
        self._recorded = 0

    def may_be_in_step(self) -> bool:
        """Return whether the calling thread may be in a recorded step."""
        return threading.get_ident() in self._by_thread

    def is_in(self, optimizer: Optimizer) -> bool:
        """Return whether the calling thread is in a recorded step of this optimizer."""
        step = self._by_thread.get(threading.get_ident())
        return step is not None and step.optimizer == id(optimizer)

    def begin(self, recorder: Recorder, optimizer: Optimizer) -> None:
        """Record that an optimizer's step begins on the calling thread, which is in no other step."""
        self._end(How.ABANDONED)
        if self.is_reduced or not self._has_room(recorder):
            return
        self._recorded += 1
        tape = recorder.tape
        detail = tape.names.intern_optional(type(optimizer).__name__, SPARE_OF_LABELS)
        prepared = prepare_activity(ActivityKind.OPTIMIZER_STEP, detail, threading.get_native_id())
        step = self._by_thread[threading.get_ident()] = _RecordedStep(tape, id(optimizer))
        step.begin(recorder.step, 0, prepared)

    def end(self) -> None:
        """Record that the calling thread's step has ended."""
        self._end(How.CALL)

    def end_abandoned(self, min_age_ns: int = MIN_AGE_NS) -> None:
        """Record the ends of steps that raised. Called once a second."""
        entered_before_ns = time.monotonic_ns() - min_age_ns
        old = [
            (thread, step)
            for thread, step in list(self._by_thread.items())
            if step.entered_ns < entered_before_ns and not step.is_over
        ]
        for thread, step in old:
            if step.is_left(_is_inside(thread)):
                step.complete(How.ABANDONED)

    def forget_all(self, ends_abandoned: bool) -> None:
        """Drop the recorded steps, because the tape ends or belongs to another process.

        Args:
            ends_abandoned: Whether to record the ends of steps that raised.
        """
        steps, self._by_thread = self._by_thread, dict[int, _RecordedStep]()
        for thread, step in steps.items() if ends_abandoned else ():
            if not _is_inside(thread):
                step.complete(How.ABANDONED)

    def _has_room(self, recorder: Recorder) -> bool:
        if recorder.step != self._step:
            self._step, self._recorded = recorder.step, 0
        return self._recorded < MAX_IN_STEP

    def _end(self, how: How) -> None:
        step = self._by_thread.get(threading.get_ident())
        if step is not None:
            step.complete(how)  # first: a signal handler may raise in between
            self._by_thread.pop(threading.get_ident(), None)


def _is_inside(thread: int) -> bool:
    """Return whether a thread is in an optimizer step."""
    return is_within_step(next(frames_by_thread()).get(thread))


def is_within_step(frame: FrameType | None) -> bool:
    """Return whether a frame or one of its callers is an optimizer step."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename == _FILE and _NAME in code.co_name:  # `is_step`, inlined
            return True
        frame = frame.f_back
    return False


def is_step(code: CodeType) -> bool:
    """Return whether `code` is torch's wrapper around the step of every optimizer, compiled or not."""
    return code.co_filename == _FILE and _NAME in code.co_name
