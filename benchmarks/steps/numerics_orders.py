"""An order to train with a look at values, and a rank's answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from otel_torchdist.config import NumericsMode


@dataclass(frozen=True, slots=True)
class Looking:
    """An order: a number of steps.

    Attributes:
        mode: What is looked at.
        warm_up: Steps before.
        steps: Steps that are timed.
    """

    mode: NumericsMode
    warm_up: int
    steps: int


@dataclass(frozen=True, slots=True)
class Looked:
    """One rank's answer.

    Attributes:
        step_ms: Processor time of the training thread in each step.
        looked_ms: Processor time of the training thread in observers, of each step on average.
        operations: Operations that were looked at, in all steps.
    """

    step_ms: Sequence[float]
    looked_ms: float
    operations: int
