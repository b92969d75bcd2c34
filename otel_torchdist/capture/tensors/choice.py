"""What is to look at the tensors of operations."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from otel_torchdist import guard
from otel_torchdist.capture.tensors.hooks import Hooks
from otel_torchdist.capture.tensors.numerics import NumericsObserver
from otel_torchdist.config import CaptureKernel, Config, NumericsMode
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_CAPTURE, OTEL_PYTHON_TORCHDIST_HOOKS

_logger = logging.getLogger("otel_torchdist")


def given_hooks(given: dict[str, Any]) -> tuple[Hooks, ...]:
    """Read the hooks among the arguments of `instrument`; what is none is left out, with a warning."""
    hooks: Any = given.get("hooks", ())
    several: list[Any] = [*hooks] if isinstance(hooks, Iterable) else [hooks]
    functions = {name: given[name] for name in ("before_operation", "after_operation") if given.get(name) is not None}
    usable = {name: function for name, function in functions.items() if callable(function)}
    for one in [one for one in several if not isinstance(one, Hooks)]:
        _logger.warning("instrument(hooks=%.100r) is not Hooks: it is not called", one)
    for name in functions.keys() - usable.keys():
        _logger.warning("instrument(%s=%.100r) is not a function: it is not called", name, functions[name])
    found = [one for one in several if isinstance(one, Hooks)]
    if usable:
        found.append(Hooks(usable.get("before_operation"), usable.get("after_operation")))
    return tuple(found)


def load_hooks(targets: Sequence[str]) -> tuple[Hooks, ...]:
    """Import what is named by `module:name`; what cannot be used is left out, with a warning."""
    return tuple(_load(targets))


@guard.calls_plug_ins
def _load(targets: Sequence[str]) -> Iterator[Hooks]:
    for target in targets:
        module, _, name = target.partition(":")
        try:
            found: Any = getattr(importlib.import_module(module), name)
        except Exception as error:
            guard.pass_on(error)
            reason = f"{type(error).__name__}: {error}"
            _logger.warning("%s=%.100r cannot be imported (%s): no hook is called", *_setting(target), reason)
            continue
        if isinstance(found, Hooks):
            yield found
        elif callable(found):
            yield Hooks(before_operation=found)
        else:
            _logger.warning("%s=%.100r is neither Hooks nor a function: no hook is called", *_setting(target))


def _setting(target: str) -> tuple[str, str]:
    return OTEL_PYTHON_TORCHDIST_HOOKS, target


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
        """Return whether the inputs of all operations of a rank are checked."""
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
