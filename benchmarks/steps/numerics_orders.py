"""An order to train with value checks, and a rank's answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from otel_torchdist.config import NumericsMode


@dataclass(frozen=True, slots=True)
class CheckOrder:
    """An order for a number of steps.

    Attributes:
        mode: Values to check.
        warm_up: Number of steps before the timed steps.
        steps: Number of timed steps.
    """

    mode: NumericsMode
    warm_up: int
    steps: int


@dataclass(frozen=True, slots=True)
class CheckedSteps:
    """The answer of one rank.

    Attributes:
        step_ms: Processor time of the training thread in each step.
        looked_ms: Mean processor time of the training thread in observers, per step.
        operations: Number of checked operations in all steps.
    """

    step_ms: Sequence[float]
    looked_ms: float
    operations: int
