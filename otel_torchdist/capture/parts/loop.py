"""Assembles the session parts that follow the training loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from otel_torchdist.capture.core.c10d.waits import FutureWaits
from otel_torchdist.capture.core.thread_labels import ThreadLabels
from otel_torchdist.capture.parts.checkpoints.first_use import Checkpoints
from otel_torchdist.capture.parts.ddp import GradientSync
from otel_torchdist.capture.parts.expectations import Expectations
from otel_torchdist.capture.parts.labels import CallLabels
from otel_torchdist.capture.parts.step_parts import StepParts
from otel_torchdist.capture.parts.steps import StepDetector

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from otel_torchdist.capture.core.calls.call import GroupState
    from otel_torchdist.capture.core.part import SessionPart
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.torch_api import Patches
    from otel_torchdist.native.library import Library


class TrainingLoop:
    """The session parts that follow the training loop of this process.

    Attributes:
        steps: Detects steps.
        labels: The labels of calls, by thread.
        parts: All parts, in their order.
    """

    def __init__(
        self,
        issued: Callable[[], int],
        find_group: Callable[[ProcessGroup], GroupState | None],
        patches: Patches,
        library: Library | None,
    ) -> None:
        """Create the parts.

        Args:
            issued: Returns the number of collectives that the default group has issued.
            find_group: Returns the state of a group, or None if nothing can be recorded.
            patches: Restores the functions that are patched at the first checkpoint.
            library: The native library, if it is in use.
        """
        self.steps = StepDetector(issued, self._step_ended)
        self.labels = ThreadLabels(library)
        self._parts = StepParts()
        self._gradient_sync = GradientSync()
        self.parts: tuple[SessionPart, ...] = (
            self.steps,
            self.labels,
            self._parts,
            self._gradient_sync,
            FutureWaits(),
            Expectations(),
            Checkpoints(patches),
            CallLabels(self.labels, find_group),
        )

    def _step_ended(self, recorder: Recorder) -> None:
        self._parts.mark_training_thread()
        self._gradient_sync.step_ended(recorder)
