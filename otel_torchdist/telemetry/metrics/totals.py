"""What is counted of a rank's operations as a whole, beside the counts by group and operation.

A total needs a field here and a line that counts it, its row in `definitions`, and its names in `semconv`: the state
from which the next reader continues and the snapshot that is shown both hold the whole of it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from otel_torchdist.model.kinds import How
from otel_torchdist.model.numerics import Numerics, NumericsFlag, Parameters
from otel_torchdist.model.operations import Operation, StepMark

_SAMPLED = int(NumericsFlag.SAMPLED)


@dataclass(slots=True)
class RankCounts:
    """Counts of one rank's operations.

    Attributes:
        untracked: Operations that were handed to a device and whose end there is not known.
        failed: Operations that ended with an exception.
        sampled: Operations whose tensors' statistics were taken.
        non_finite: Operations with an input that was infinite or not a number.
        unseen: Operations that should have been looked at and were not, by the reason.
        skipped_steps: Steps that a gradient scaler has left out.
        loss_scale: The newest scale of a gradient scaler; None if it is not known.
        compared_parameters: Checksums of parameters that replicas share.
        replicas_left_out: Models and optimizers whose parameters are not compared, because there are too many.
    """

    untracked: int = 0
    failed: int = 0
    sampled: int = 0
    non_finite: int = 0
    skipped_steps: int = 0
    loss_scale: float | None = None
    compared_parameters: int = 0
    replicas_left_out: int = 0
    unseen: dict[str, int] = field(default_factory=dict[str, int])

    def count_ended(self, operation: Operation) -> None:
        """Count an operation that has ended, in whatever way."""
        self.untracked += operation.how is How.UNTRACKED
        self.failed += operation.how is How.FAILED

    def count_looked_at(self, numerics: Numerics) -> None:
        """Count an operation whose tensors were to be looked at."""
        self.sampled += bool(int(numerics.flags) & _SAMPLED)
        if numerics.unseen is not None:
            reason = numerics.unseen.label
            self.unseen[reason] = self.unseen.get(reason, 0) + 1

    def count_values(self, numerics: Numerics) -> None:
        """Count what is known of an operation's inputs."""
        self.non_finite += numerics.is_finite is False

    def count_step(self, mark: StepMark) -> None:
        """Count a step that has ended."""
        self.skipped_steps += mark.skipped
        self.loss_scale = mark.scale

    def count_parameters(self, parameters: Parameters) -> None:
        """Count a checksum of parameters."""
        self.compared_parameters += 1
        self.replicas_left_out = parameters.left_out

    def copy(self) -> RankCounts:
        """Return an independent copy."""
        return dataclasses.replace(self, unseen=dict(self.unseen))
