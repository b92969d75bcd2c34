"""Where one training step ends and the next begins.

`mark_step()` when the user calls it; else the step of one optimizer, the outermost and first seen (a GAN or
ZeroRedundancyOptimizer would count several a step otherwise); else windows of the default group's collectives.
"""

from __future__ import annotations

import enum
import time
import weakref
from typing import Any, Final

from torch.optim import Optimizer

from otel_torchdist import _guard
from otel_torchdist.capture.recorder import Recorder
from otel_torchdist.capture.torch_api import hook_optimizers, skip_in_dynamo

WINDOW: Final = 64
"""Collectives of the default group that make a step where nothing else does."""


_active: Steps | None = None
"""The steps that `mark_step` ends: there is at most one capture in a process."""


def mark_step() -> None:
    """Say that a training step has ended; does nothing while instrumentation is off.

    From the first call on, only these calls count: optimizers no longer end steps.
    """
    if _active is not None:
        _active.mark()


class StepSource(enum.IntEnum):
    """Who says that a step has ended; a higher one silences the lower ones for good."""

    WINDOWS = 0
    OPTIMIZER = 1
    MARK_STEP = 2


class Steps:
    """Ends steps on the recorder it is given."""

    def __init__(self) -> None:
        """No step has been seen; `hook` makes optimizers count."""
        self.source = StepSource.WINDOWS
        self.recorder: Recorder | None = None
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._inside: list[int] = []
        self._handles: list[Any] = []

    def hook(self) -> None:
        """Watch every optimizer of the process, and listen to `mark_step`."""
        global _active
        _active = self
        for hook in (Steps._before_step, Steps._after_step):
            skip_in_dynamo(hook.__code__)
        self._handles.extend(hook_optimizers(self._before_step, self._after_step))

    def unhook(self) -> None:
        """Stop watching and listening."""
        global _active
        _active = None
        while self._handles:
            self._handles.pop().remove()

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        identity = id(optimizer)
        if identity in self._inside:  # its last step raised, and nobody told us
            del self._inside[self._inside.index(identity) :]
        self._inside.append(identity)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        try:
            if id(optimizer) in self._inside:
                del self._inside[self._inside.index(id(optimizer)) :]
            if not self._inside and self._is_chosen(optimizer):
                self._end(StepSource.OPTIMIZER)
        except Exception as error:
            _guard.report("optimizer hook", error)

    def _is_chosen(self, optimizer: Optimizer) -> bool:
        chosen = self._optimizer() if self._optimizer else None
        if chosen is None:
            self._optimizer = weakref.ref(optimizer)
            return True
        return chosen is optimizer

    def mark(self) -> None:
        """The user says that a step has ended."""
        self._end(StepSource.MARK_STEP)

    def collective_begins(self, sequence: int) -> None:
        """The default group's `sequence` is about to be issued; it belongs to the next window when this one is full."""
        if sequence % WINDOW == 1 and sequence > WINDOW:
            self._end(StepSource.WINDOWS)

    def _end(self, source: StepSource) -> None:
        if source < self.source or self.recorder is None:
            return
        self.source = source
        self.recorder.end_step(time.monotonic_ns())
