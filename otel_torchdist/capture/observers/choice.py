"""What is to look at the tensors of operations."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from otel_torchdist.capture.observers.hooks import Hooks
from otel_torchdist.capture.observers.loading import given_hooks, load_hooks
from otel_torchdist.capture.observers.values.numerics import NumericsObserver
from otel_torchdist.config import CaptureKernel, Config, NumericsMode
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_CAPTURE

_logger = logging.getLogger("otel_torchdist")


@dataclass(frozen=True, slots=True)
class Observing:
    """What looks at tensors.

    Attributes:
        hooks: Functions of the user's.
        synchronizes: Whether devices are synchronised around collectives.
        numerics: Records the values of tensors; None for nothing.
        compare_parameters: Parameters of replicas are compared before each so-many-th step; 0 for never.
    """

    hooks: tuple[Hooks, ...] = ()
    synchronizes: bool = False
    numerics: NumericsObserver | None = None
    compare_parameters: int = 0

    @property
    def looks_at_tensors(self) -> bool:
        """Whether something needs the tensors themselves."""
        return bool(self.hooks) or self.numerics is not None

    def checks_values(self, rank: int) -> bool:
        """Whether the inputs of all operations of a rank are checked."""
        numerics = self.numerics
        return numerics is not None and numerics.mode is NumericsMode.ALL and numerics.is_for(rank)

    @property
    def is_none(self) -> bool:
        """Whether there is nothing to call at operations."""
        return not self.looks_at_tensors and not self.synchronizes


def chosen_observers(config: Config, given: dict[str, Any]) -> Observing:
    """Return what the settings and the arguments of `instrument` ask for, and warn of what that excludes.

    It need not be called, nor this module be imported, where they name nothing: see `Config.observes_tensors`.
    """
    is_off = config.numerics is NumericsMode.OFF
    observing = Observing(
        hooks=(*given_hooks(given), *load_hooks(config.hooks)),
        synchronizes=config.synchronize,
        numerics=None if is_off else NumericsObserver(config.numerics, config.numerics_every, config.numerics_ranks),
        compare_parameters=config.compare_parameters,
    )
    if not observing.is_none and config.capture is CaptureKernel.NATIVE:
        _logger.warning(
            "%s=native: recording in Python, because hooks, numerics and synchronised timing are called from there",
            OTEL_PYTHON_TORCHDIST_CAPTURE,
        )
    return observing
