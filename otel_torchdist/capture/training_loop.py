"""What is recorded of a training loop beside operations: steps, their parts, checkpoints, labels, expected waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch.distributed import ProcessGroup

from otel_torchdist import guard
from otel_torchdist.capture.c10d.future_waits import FutureWaits
from otel_torchdist.capture.checkpoints.first_use import Checkpoints
from otel_torchdist.capture.labels.parts import LabelledParts
from otel_torchdist.capture.thread_labels import ThreadLabels
from otel_torchdist.capture.training.expectations import Expectations
from otel_torchdist.capture.training.gradient_sync import GradientSync
from otel_torchdist.capture.training.step_parts import StepParts
from otel_torchdist.capture.training.steps import Steps

if TYPE_CHECKING:
    from otel_torchdist.capture.c10d.calls.call import GroupState
    from otel_torchdist.capture.recorder import Recorder
    from otel_torchdist.capture.torch_api import Patches
    from otel_torchdist.native.library import Library


class TrainingLoop:
    """Follows the training loop of this process.

    Attributes:
        steps: Its steps.
        labels: The labels of the calls that its threads make.
    """

    def __init__(
        self,
        issued: Callable[[], int],
        meet: Callable[[ProcessGroup], GroupState | None],
        patches: Patches,
        library: Library | None,
    ) -> None:
        """Follow nothing until `hook`.

        Args:
            issued: Returns how many collectives of the default group have been issued.
            meet: Finds groups.
            patches: Replaces attributes, and restores them later.
            library: The native library, if there is one.
        """
        self._patches = patches
        self.steps = Steps(issued, self._step_ended)
        self.labels = ThreadLabels(library)
        self._labelled_parts = LabelledParts(self.labels, meet)
        self._parts = StepParts()
        self._gradient_sync = GradientSync()
        self._expectations = Expectations()
        self._future_waits = FutureWaits()
        self._checkpoints = Checkpoints(patches)

    def hook(self) -> None:
        """Follow it from now on."""
        self.steps.hook(self._patches)
        self._parts.hook(self._patches)
        self._gradient_sync.hook(self._patches)
        self._future_waits.hook(self._patches)
        self._expectations.hook()
        self._checkpoints.hook()
        self._labelled_parts.hook()

    def unhook(self) -> None:
        """Undo `hook`, except for what `patches` restores."""
        self.steps.unhook()
        self._parts.unhook()
        self._expectations.unhook()
        self._checkpoints.unhook()
        self.restore()

    def restore(self) -> None:
        """Restore what has been replaced in parts of torch that programs import when they need them."""
        self._labelled_parts.unhook()

    def write_to(self, recorder: Recorder | None) -> None:
        """Record with this recorder from now on; None to record nothing."""
        self.steps.recorder = self.labels.recorder = recorder
        self._checkpoints.write_to(recorder)
        self._parts.write_to(recorder)
        self._future_waits.recorder = recorder
        self._expectations.write_to(recorder)

    def beat(self) -> None:
        """Record the ends of what was left with an exception; called once a second."""
        self.steps.optimizer_steps.end_left()
        self._checkpoints.beat()

    def forget_all(self, ends_left: bool) -> None:
        """Forget what is open, because the tape ends or is another process's.

        Args:
            ends_left: Whether to record as ended what was left with an exception.
        """
        with guard.guarded("optimizer steps"):
            self.steps.optimizer_steps.forget_all(ends_left=ends_left)
        with guard.guarded("checkpoints"):
            self._checkpoints.forget_all(ends_left=ends_left)

    def _step_ended(self, recorder: Recorder) -> None:
        self._parts.trains_here()
        self._gradient_sync.step_ended(recorder)
