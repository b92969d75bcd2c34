"""Detects where one training step ends and the next begins.

The first of these that applies: `mark_step()`, if the user calls it; the step of one optimizer, the outermost and first
seen (a GAN or ZeroRedundancyOptimizer would otherwise count several per step); windows of the default group's
collectives. A `GradScaler` that finds an overflow does not call the optimizer: that ends a step too.
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
from otel_torchdist.tape.figures import FigureWord

if TYPE_CHECKING:
    from otel_torchdist.capture.core.torch_api import Patches
    from otel_torchdist.tape.writer import TapeWriter

_logger = logging.getLogger("otel_torchdist")
_WORDS: Final = {"samples": FigureWord.SAMPLES, "tokens": FigureWord.TOKENS}
_warned_of: Final[set[str]] = set()


def count_work(tape: TapeWriter, samples: float | None, tokens: float | None, flops: float | None) -> None:
    """Add what a step has done to the tape; a value that is no number of things is left out, with one warning."""
    for name, amount in (("samples", samples), ("tokens", tokens)):
        if amount is not None and _is_amount(name, amount):
            tape.add_to(_WORDS[name], round(amount))
    if flops is not None and _is_amount("flops", flops):
        tape.add_flops(float(flops))


def _is_amount(name: str, amount: object) -> bool:
    # No tensor, not even one with a single number: to read one from a device waits for the device.
    if isinstance(amount, Real) and 0 <= float(amount) < math.inf:
        return True
    if name not in _warned_of:
        _warned_of.add(name)
        _logger.warning("mark_step(%s=%r): not a finite number, at least 0: ignored", name, amount)
    return False


TAKES_OVER_AFTER: Final = 16
"""Steps of another optimizer, with none of the chosen one in between, after which that other one is chosen: a new phase
of training has begun. A discriminator makes fewer between two steps of its generator."""


_active: StepDetector | None = None
"""The instance whose steps `mark_step` ends; a process has at most one capture."""


def mark_step(*, samples: float | None = None, tokens: float | None = None, flops: float | None = None) -> None:
    """Mark the end of a training step; does nothing while instrumentation is off.

    From the first call on, only these calls count: optimizers no longer end steps. A step that an optimizer has already
    ended is not ended again by the first call.

    Args:
        samples: Samples that this rank has processed in the step, for metrics of throughput.
        tokens: Tokens that it has processed.
        flops: Floating-point operations of its model in the step, as you count them.
    """
    if _active is not None:
        _active.mark(samples, tokens, flops)


class StepSource(enum.IntEnum):
    """What ended a step; a higher source permanently overrides the lower ones."""

    WINDOWS = 0
    OPTIMIZER = 1
    MARK_STEP = 2


class _Thread(threading.local):
    """Whether an optimizer has stepped on the calling thread since this was last reset."""

    stepped = False


class StepDetector(RecordingPart):
    """Ends steps on the recorder it is given, and shows the steps of optimizers in them.

    Nothing that ends steps is kept while an optimizer's step runs: it may raise, and another thread may run one too.
    Whether it runs inside the step of another optimizer is visible in the stack.

    Attributes:
        optimizer_steps: The steps of optimizers.
    """

    def __init__(
        self,
        issued: Callable[[], int],
        ended: Callable[[Recorder], None] | None = None,
        scales: LossScales | None = None,
    ) -> None:
        """Initialize the steps; optimizers count only after `hook`.

        Args:
            issued: Returns how many collectives the default group has issued.
            ended: Called on the thread that trains when a step has ended that was seen to be one.
            scales: Follows the scales of losses; a new one by default.
        """
        super().__init__()
        self._issued = issued
        self._ended = ended
        self.optimizer_steps = OptimizerSteps()
        self.source = StepSource.WINDOWS
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._others: Counter[int] = Counter()
        self._scales = LossScales() if scales is None else scales
        self._window = 0
        self._calls = 0
        self._thread = _Thread()
        self._handles: list[Any] = []

    def hook(self, patches: Patches) -> None:
        """Watch every optimizer and gradient scaler of the process, and handle `mark_step`."""
        global _active
        _active = self
        for ours in (StepDetector._begins, StepDetector._after_step, StepDetector._left_out):
            skip_in_dynamo(ours.__code__)
        self._handles += hook_optimizers(self._before_step, self._after_step)
        patches.replace(GRAD_SCALER, "_maybe_opt_step", self._make_scaled_step, is_traced=True)
        self._scales.hook(patches)

    def unhook(self) -> None:
        """Stop watching optimizers and handling `mark_step`."""
        global _active
        _active = None
        while self._handles:
            self._handles.pop().remove()

    def begins(self, recorder: Recorder) -> None:
        """Record to a new tape; windows of collectives end its steps only if nothing else has ended any before."""
        super().begins(recorder)
        if recorder.native is not None and self.source is not StepSource.WINDOWS:
            recorder.native.stop_windows()

    def beat(self, recorder: Recorder) -> None:
        """Record the ends of optimizer steps that were left with an exception."""
        self.optimizer_steps.end_left()

    def ends(self, recorder: Recorder) -> None:
        """Record the ends of optimizer steps that were left with an exception, and forget those that are open."""
        super().ends(recorder)
        self.optimizer_steps.forget_all(ends_left=True)

    def forget_in_child(self) -> None:
        """Forget the optimizer steps of the parent."""
        super().forget_in_child()
        self.optimizer_steps.forget_all(ends_left=False)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not is_dynamo_compiling():  # all that Dynamo may see of it: compiled steps are not recorded
            self._begins(optimizer)

    def _begins(self, optimizer: Optimizer) -> None:
        try:
            # The stack is read only if it matters, since that takes longer than all the rest.
            if self.recorder is not None and not (self.optimizer_steps.is_in_one() and _is_nested()):
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
        """Return whether the step of this optimizer ends a step, unless it is nested."""
        chosen = self._optimizer() if self._optimizer else None
        if chosen is None or chosen is optimizer:
            return True
        # There may be many optimizers, one per parameter: keep only a count for those that are not chosen.
        self._others[id(optimizer)] = steps = self._others[id(optimizer)] + 1
        return steps >= TAKES_OVER_AFTER

    def _end_by(self, optimizer: Optimizer, skipped: bool = False) -> None:
        if self._optimizer is None or self._optimizer() is not optimizer:
            self._optimizer = weakref.ref(optimizer)
        self._others.clear()
        self._end(StepSource.OPTIMIZER, skipped)

    def _make_scaled_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        # Not `step` itself, which warns at the line of its caller. Fused optimizers check for overflow themselves, are
        # always called, and never get here.
        def maybe_step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._thread.stepped = False
            with guard.guarded("gradient scaler"):
                self._scales.steps(scaler)
            result = original(scaler, optimizer, *args, **kwargs)
            try:
                has_stepped = self._thread.stepped
                known = None if has_stepped else _hooked(optimizer)
                self._scales.stepped(scaler, None if known is None and not has_stepped else not has_stepped)
                if known is not None:
                    self._left_out(known)
            except Exception as error:
                guard.report("gradient scaler", error)
            return result

        return maybe_step

    def _left_out(self, optimizer: Any) -> None:
        """Count a step of an optimizer that a scaler skipped because of an overflow."""
        if self._is_candidate(optimizer) and not _is_nested():
            self._end_by(optimizer, skipped=True)

    def mark(self, samples: float | None = None, tokens: float | None = None, flops: float | None = None) -> None:
        """End a step because the user called `mark_step`, with what it has processed."""
        if self.recorder is not None:
            with guard.guarded("mark_step"):
                count_work(self.recorder.tape, samples, tokens, flops)
        self._end(StepSource.MARK_STEP)

    def collective_begins(self, sequence: int) -> None:
        """Handle the default group's next collective, `sequence`; if the window is full, it begins the next one."""
        window = (sequence - 1) // WINDOW
        if window > self._window:
            self._window = window
            self._end(StepSource.WINDOWS)
        elif sequence == 1:  # the first one of a new group
            self._window = 0

    def call_begins(self) -> None:
        """Handle a remote procedure call: without a default group, as many as a window of collectives make a step."""
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
        is_ended = source is StepSource.MARK_STEP and self.source is StepSource.OPTIMIZER
        self.source = source
        if is_ended:  # by the optimizer, before the first `mark_step`: a second end would make a step of no length
            return
        self.recorder.end_step(time.monotonic_ns(), self._issued(), skipped, self._scales.newest)
        if self._ended is not None and source is not StepSource.WINDOWS:
            self._ended(self.recorder)


def _hooked(given: Any) -> Any:
    """Return the optimizer within others that calls hooks; None if there is none."""
    while given is not None and not is_hooked(given):
        given = getattr(given, "optimizer", None)
    return given


def _is_nested() -> bool:
    """Return whether the optimizer that steps was called within the step of another one."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  # what `inspect` would call
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    # Frames of this very step: several if Dynamo has split it.
    while frame is not None and is_step(frame.f_code):
        frame = frame.f_back
    return is_within_step(frame)
