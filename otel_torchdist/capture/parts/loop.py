"""The parts of a session that follow a training loop beside its operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from otel_torchdist.capture.core.c10d.waits import FutureWaits
from otel_torchdist.capture.core.thread_labels import ThreadLabels
from otel_torchdist.capture.parts.checkpoints.first_use import Checkpoints
from otel_torchdist.capture.parts.ddp import GradientSync
from otel_torchdist.capture.parts.expectations import Expectations
from otel_torchdist.capture.parts.labels import LabelledParts
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
    """Follows the training loop of this process.

    Attributes:
        steps: Its steps.
        labels: The labels of the calls that its threads make.
        parts: All that follows it, in order.
    """

    def __init__(
        self,
        issued: Callable[[], int],
        meet: Callable[[ProcessGroup], GroupState | None],
        patches: Patches,
        library: Library | None,
    ) -> None:
        """Follow nothing until the parts are hooked.

        Args:
            issued: Returns how many collectives of the default group have been issued.
            meet: Finds groups.
            patches: Restores what is replaced with the first checkpoint.
            library: The native library, if there is one.
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
            LabelledParts(self.labels, meet),
        )

    def _step_ended(self, recorder: Recorder) -> None:
        self._parts.trains_here()
        self._gradient_sync.step_ended(recorder)
