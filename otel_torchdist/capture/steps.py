"""Detects where one training step ends and the next begins.

The first of these that applies: `mark_step()`, if the user calls it; the step of one optimizer, the outermost and first
seen (a GAN or ZeroRedundancyOptimizer would otherwise count several per step); windows of the default group's
collectives. A `GradScaler` that finds an overflow does not call the optimizer: that ends a step too.
"""

from __future__ import annotations

import enum
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from torch.optim import Optimizer

from otel_torchdist import guard
from otel_torchdist.capture.recorder import Recorder
from otel_torchdist.capture.torch_api import GRAD_SCALER, HOOKED_STEP, hook_optimizers, is_hooked, skip_in_dynamo

if TYPE_CHECKING:
    from types import CodeType

    from otel_torchdist.capture.torch_api import Patches

WINDOW: Final = 64
"""Number of collectives of the default group that make a step if nothing else ends steps."""
TAKES_OVER_AFTER: Final = 16
"""Steps of another optimizer, with none of the chosen one in between, after which that other one is chosen: a new phase
of training has begun. A discriminator makes fewer between two steps of its generator."""


_active: Steps | None = None
"""The instance whose steps `mark_step` ends; a process has at most one capture."""


def mark_step() -> None:
    """Mark the end of a training step; does nothing while instrumentation is off.

    From the first call on, only these calls count: optimizers no longer end steps.
    """
    if _active is not None:
        _active.mark()


class StepSource(enum.IntEnum):
    """What ended a step; a higher source permanently overrides the lower ones."""

    WINDOWS = 0
    OPTIMIZER = 1
    MARK_STEP = 2


class _Thread(threading.local):
    """Whether an optimizer has stepped on the calling thread since this was last reset."""

    stepped = False


class Steps:
    """Ends steps on the recorder it is given.

    No state is kept while an optimizer's step runs: it may raise, and another thread may run one too. Whether it runs
    inside the step of another optimizer is visible in the stack.
    """

    def __init__(self, issued: Callable[[], int]) -> None:
        """Initialize the steps; optimizers count only after `hook`.

        Args:
            issued: Returns how many collectives the default group has issued.
        """
        self._issued = issued
        self.source = StepSource.WINDOWS
        self.recorder: Recorder | None = None
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._others: Counter[int] = Counter()
        self._window = 0
        self._thread = _Thread()
        self._handles: list[Any] = []

    def hook(self, patches: Patches) -> None:
        """Watch every optimizer and gradient scaler of the process, and handle `mark_step`."""
        global _active
        _active = self
        for ours in (Steps._after_step, Steps._left_out):
            skip_in_dynamo(ours.__code__)
        self._handles.append(hook_optimizers(self._after_step))
        patches.replace(GRAD_SCALER, "_maybe_opt_step", self._make_scaled_step, is_traced=True)

    def unhook(self) -> None:
        """Stop watching optimizers and handling `mark_step`."""
        global _active
        _active = None
        while self._handles:
            self._handles.pop().remove()

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        try:
            self._thread.stepped = True
            self._stepped(optimizer)
        except Exception as error:
            guard.report("optimizer hook", error)

    def _stepped(self, optimizer: Optimizer) -> None:
        chosen = self._optimizer() if self._optimizer else None
        if chosen is not None and chosen is not optimizer:
            # There may be many optimizers, one per parameter: keep only a count for those that are not chosen.
            self._others[id(optimizer)] = steps = self._others[id(optimizer)] + 1
            if steps < TAKES_OVER_AFTER:
                return
        if _is_nested():
            return
        if chosen is not optimizer:
            self._optimizer = weakref.ref(optimizer)
        self._others.clear()
        self._end(StepSource.OPTIMIZER)

    def _make_scaled_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        # Not `step` itself, which warns at the line of its caller. Fused optimizers check for overflow themselves, are
        # always called, and never get here.
        def maybe_step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._thread.stepped = False
            result = original(scaler, optimizer, *args, **kwargs)
            try:
                if not self._thread.stepped:
                    self._left_out(optimizer)
            except Exception as error:
                guard.report("gradient scaler", error)
            return result

        return maybe_step

    def _left_out(self, given: Any) -> None:
        """Count a step of an optimizer, possibly wrapped in others, that a scaler skipped because of an overflow."""
        while given is not None and not is_hooked(given):
            given = getattr(given, "optimizer", None)
        if given is not None:
            self._stepped(given)

    def mark(self) -> None:
        """End a step because the user called `mark_step`."""
        self._end(StepSource.MARK_STEP)

    def collective_begins(self, sequence: int) -> None:
        """Handle the default group's next collective, `sequence`; if the window is full, it begins the next one."""
        window = (sequence - 1) // WINDOW
        if window > self._window:
            self._window = window
            self._end(StepSource.WINDOWS)
        elif sequence == 1:  # the first one of a new group
            self._window = 0

    def _end(self, source: StepSource) -> None:
        if source < self.source or self.recorder is None:
            return
        self.source = source
        self.recorder.end_step(time.monotonic_ns(), self._issued())


def _is_nested() -> bool:
    """Whether the optimizer that has just stepped was called within the step of another one."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  # what `inspect` would call
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    # Frames of the step that has just ended: several if Dynamo has split it.
    while frame is not None and _is_step(frame.f_code):
        frame = frame.f_back
    while frame is not None and not _is_step(frame.f_code):
        frame = frame.f_back
    return frame is not None


def _is_step(code: CodeType) -> bool:
    """Whether `code` is torch's wrapper around the step of every optimizer, compiled or not."""
    return code.co_filename == HOOKED_STEP.co_filename and HOOKED_STEP.co_name in code.co_name
