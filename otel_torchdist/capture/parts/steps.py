"""Detects the ends of training steps.

The first available source applies: `mark_step()`, if the user calls it; the step of one optimizer, the outermost and
first (a GAN or ZeroRedundancyOptimizer has several per step); windows of the default group's collectives. A
`GradScaler` that finds an overflow skips the optimizer, which also ends a step.
"""

from __future__ import annotations

import enum
import logging
import math
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any, Final

from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from otel_torchdist import guard
from otel_torchdist.capture.core.part import RecordingPart
from otel_torchdist.capture.core.recorder import Recorder
from otel_torchdist.capture.core.run.recording import WINDOW
from otel_torchdist.capture.core.torch_api import GRAD_SCALER, hook_optimizers, is_hooked, skip_in_dynamo
from otel_torchdist.capture.parts.loss_scale import LossScales
from otel_torchdist.capture.parts.optimizer_steps import OptimizerSteps, is_step, is_within_step
from otel_torchdist.capture.upstream import training
from otel_torchdist.model.recording_level import RecordingLevel
from otel_torchdist.tape.figures import FigureWord

if TYPE_CHECKING:
    from otel_torchdist.capture.core.torch_api import Patches
    from otel_torchdist.tape.writer import TapeWriter

_logger = logging.getLogger("otel_torchdist")
_WORDS: Final = {"samples": FigureWord.SAMPLES, "tokens": FigureWord.TOKENS}
_warned_of: Final[set[str]] = set()


def count_work(tape: TapeWriter, samples: float | None, tokens: float | None, flops: float | None) -> None:
    """Add the work of a step to the tape. Ignore values that are not finite numbers, with one warning."""
    for name, amount in (("samples", samples), ("tokens", tokens)):
        if amount is not None and _is_amount(name, amount):
            tape.add_to(_WORDS[name], round(amount))
    if flops is not None and _is_amount("flops", flops):
        tape.add_flops(float(flops))


def _is_amount(name: str, amount: object) -> bool:
    # No tensor, not even a scalar: reading it would synchronize with its device.
    if isinstance(amount, Real) and 0 <= float(amount) < math.inf:
        return True
    if name not in _warned_of:
        _warned_of.add(name)
        _logger.warning("mark_step(%s=%r): ignored, not a finite non-negative number", name, amount)
    return False


REPLACES_CHOSEN_AFTER: Final = 16
"""Number of steps that another optimizer makes, without a step of the chosen optimizer, before it replaces the chosen
optimizer: a new training phase has begun. A discriminator makes fewer steps between two steps of its generator."""


_active: StepDetector | None = None
"""The instance that `mark_step` calls. A process has at most one capture."""


def mark_step(*, samples: float | None = None, tokens: float | None = None, flops: float | None = None) -> None:
    """Mark the end of a training step. Does nothing while instrumentation is off.

    From the first call on, only these calls end steps: optimizers no longer do. If an optimizer has already ended the
    step, the first call does not end it again.

    Args:
        samples: Samples that this rank has processed in the step, for metrics of throughput.
        tokens: Tokens that this rank has processed in the step.
        flops: Floating-point operations of this rank's model in the step, as you count them.
    """
    if _active is not None:
        _active.mark(samples, tokens, flops)


class StepSource(enum.IntEnum):
    """Sources of steps. A higher source permanently overrides lower ones."""

    WINDOWS = 0
    OPTIMIZER = 1
    MARK_STEP = 2


class _Thread(threading.local):
    """State of the calling thread.

    Attributes:
        stepped: Whether an optimizer has stepped since the gradient scaler was called.
    """

    stepped = False


class StepDetector(RecordingPart):
    """The session part that ends steps, and records optimizer steps.

    It keeps no state during an optimizer's step, which may raise, while other threads may run steps. The stack shows
    whether a step is nested in another optimizer's step.

    Attributes:
        optimizer_steps: Recorder of optimizer steps.
    """

    def __init__(
        self,
        issued: Callable[[], int],
        ended: Callable[[Recorder], None] | None = None,
        scales: LossScales | None = None,
    ) -> None:
        """Initialize without hooks.

        Args:
            issued: Returns the number of collectives that the default group has issued.
            ended: Called on the training thread after a step, except for windows of collectives.
            scales: Tracks loss scales; a new instance by default.
        """
        super().__init__()
        self._issued = issued
        self._ended = ended
        self.optimizer_steps = OptimizerSteps()
        self.source = StepSource.WINDOWS
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._steps_of_others: Counter[int] = Counter()
        self._scales = LossScales() if scales is None else scales
        self._window = 0
        self._calls = 0
        self._thread = _Thread()
        self._handles: list[Any] = []

    def hook(self, patches: Patches) -> None:
        """Hook all optimizers and gradient scalers, and handle `mark_step`."""
        global _active
        _active = self
        for function in (StepDetector._begins, StepDetector._after_step, StepDetector._skipped_step):
            skip_in_dynamo(function.__code__)
        self._handles += hook_optimizers(self._before_step, self._after_step)
        patches.replace(GRAD_SCALER, training.SCALED_STEP, self._make_scaled_step, is_traced=True)
        self._scales.hook(patches)

    def unhook(self) -> None:
        """Remove the hooks, and stop handling `mark_step`."""
        global _active
        _active = None
        while self._handles:
            self._handles.pop().remove()

    def begins(self, recorder: Recorder) -> None:
        """Start recording to a new tape. Windows of collectives end steps only if no other source ever has."""
        super().begins(recorder)
        if recorder.native is not None and self.source is not StepSource.WINDOWS:
            recorder.native.stop_windows()

    def beat(self, recorder: Recorder) -> None:
        """Record the ends of optimizer steps that raised."""
        self.optimizer_steps.end_abandoned()

    def reduce(self, level: RecordingLevel) -> None:
        """Record no steps of optimizers from `NO_INTERVALS` on. They still end training steps."""
        self.optimizer_steps.is_reduced = level >= RecordingLevel.NO_INTERVALS

    def ends(self, recorder: Recorder) -> None:
        """Record the ends of optimizer steps that raised, and drop open ones."""
        super().ends(recorder)
        self.optimizer_steps.forget_all(ends_abandoned=True)

    def forget_in_child(self) -> None:
        """Drop the optimizer steps of the parent."""
        super().forget_in_child()
        self.optimizer_steps.forget_all(ends_abandoned=False)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not is_dynamo_compiling():  # Dynamo must find nothing to trace: compiled steps are not recorded
            self._begins(optimizer)

    def _begins(self, optimizer: Optimizer) -> None:
        try:
            # The stack is read last and only if necessary: it takes longer than everything else here.
            if self.recorder is not None and not (self.optimizer_steps.may_be_in_step() and _is_nested()):
                self.optimizer_steps.begin(self.recorder, optimizer)
        except Exception as error:
            guard.report("optimizer hook", error)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        try:
            self._thread.stepped = True
            is_candidate, is_recorded = self._is_candidate(optimizer), self.optimizer_steps.is_in(optimizer)
            if not (is_candidate or is_recorded) or _is_nested():
                return
            if is_recorded:
                self.optimizer_steps.end()
            if is_candidate:
                self._end_by(optimizer)
        except Exception as error:
            guard.report("optimizer hook", error)

    def _is_candidate(self, optimizer: Optimizer) -> bool:
        """Return whether a step of this optimizer ends a training step, unless it is nested."""
        chosen = self._optimizer() if self._optimizer else None
        if chosen is None or chosen is optimizer:
            return True
        # There may be an optimizer for each parameter, so no reference is kept: only the steps are counted.
        self._steps_of_others[id(optimizer)] = steps = self._steps_of_others[id(optimizer)] + 1
        return steps >= REPLACES_CHOSEN_AFTER

    def _end_by(self, optimizer: Optimizer, skipped: bool = False) -> None:
        if self._optimizer is None or self._optimizer() is not optimizer:
            self._optimizer = weakref.ref(optimizer)
        self._steps_of_others.clear()
        self._end(StepSource.OPTIMIZER, skipped)

    def _make_scaled_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        # Not `step`, whose warnings show the line of its caller. Fused optimizers check for overflow themselves. A
        # scaler always calls them, and does not use this method.
        def maybe_step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._thread.stepped = False
            with guard.guarded("gradient scaler"):
                self._scales.before_step(scaler)
            result = original(scaler, optimizer, *args, **kwargs)
            try:
                has_stepped = self._thread.stepped
                skipped = None if has_stepped else _unwrap(optimizer)
                self._scales.after_step(scaler, None if skipped is None and not has_stepped else not has_stepped)
                if skipped is not None:
                    self._skipped_step(skipped)
            except Exception as error:
                guard.report("gradient scaler", error)
            return result

        return maybe_step

    def _skipped_step(self, optimizer: Any) -> None:
        """End a step whose optimizer step a scaler skipped because of an overflow."""
        if self._is_candidate(optimizer) and not _is_nested():
            self._end_by(optimizer, skipped=True)

    def mark(self, samples: float | None = None, tokens: float | None = None, flops: float | None = None) -> None:
        """End a step because the user called `mark_step`, and record its work."""
        if self.recorder is not None:
            with guard.guarded("mark_step"):
                count_work(self.recorder.tape, samples, tokens, flops)
        self._end(StepSource.MARK_STEP)

    def collective_begins(self, sequence: int) -> None:
        """Count the default group's next collective. If the window is full, it begins the next window."""
        window = (sequence - 1) // WINDOW
        if window > self._window:
            self._window = window
            self._end(StepSource.WINDOWS)
        elif sequence == 1:  # a new group
            self._window = 0

    def call_begins(self) -> None:
        """Count a remote procedure call. Without a default group, `WINDOW` calls make a step."""
        if self.source is not StepSource.WINDOWS or self._issued():
            return
        self._calls += 1
        if self._calls > WINDOW:
            self._calls = 1
            self._end(StepSource.WINDOWS)

    def _end(self, source: StepSource, skipped: bool = False) -> None:
        if source < self.source or self.recorder is None:
            return
        if source is not self.source and self.recorder.native is not None:
            self.recorder.native.stop_windows()
        ended_by_optimizer = source is StepSource.MARK_STEP and self.source is StepSource.OPTIMIZER
        self.source = source
        if ended_by_optimizer:  # before the first `mark_step`: a second end would make an empty step
            return
        self.recorder.end_step(time.monotonic_ns(), self._issued(), skipped, self._scales.newest)
        if self._ended is not None and source is not StepSource.WINDOWS:
            self._ended(self.recorder)


def _unwrap(optimizer: Any) -> Any:
    """Return the optimizer that calls hooks, inside any wrappers, or None."""
    while optimizer is not None and not is_hooked(optimizer):
        optimizer = getattr(optimizer, "optimizer", None)
    return optimizer


def _is_nested() -> bool:
    """Return whether the stepping optimizer was called in the step of another optimizer."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  # `inspect` uses it, too
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    # Frames of this step: several if Dynamo has split it.
    while frame is not None and is_step(frame.f_code):
        frame = frame.f_back
    return is_within_step(frame)
