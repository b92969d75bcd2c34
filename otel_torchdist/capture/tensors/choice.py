"""Chooses the observers of tensors from the settings and the arguments of `instrument`."""

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


def given_hooks(arguments: dict[str, Any]) -> tuple[Hooks, ...]:
    """Read the hooks in the arguments of `instrument`. Skip invalid values with a warning."""
    hooks: Any = arguments.get("hooks", ())
    values: list[Any] = [*hooks] if isinstance(hooks, Iterable) else [hooks]
    functions = {
        name: arguments[name] for name in ("before_operation", "after_operation") if arguments.get(name) is not None
    }
    usable = {name: function for name, function in functions.items() if callable(function)}
    for value in [value for value in values if not isinstance(value, Hooks)]:
        _logger.warning("instrument(hooks=%.100r) is not Hooks: it is not called", value)
    for name in functions.keys() - usable.keys():
        _logger.warning("instrument(%s=%.100r) is not a function: it is not called", name, functions[name])
    valid = [value for value in values if isinstance(value, Hooks)]
    if usable:
        valid.append(Hooks(usable.get("before_operation"), usable.get("after_operation")))
    return tuple(valid)


def load_hooks(targets: Sequence[str]) -> tuple[Hooks, ...]:
    """Import hooks by `module:name`. Skip invalid targets with a warning."""
    return tuple(_load(targets))


@guard.calls_plug_ins
def _load(targets: Sequence[str]) -> Iterator[Hooks]:
    for target in targets:
        module, _, name = target.partition(":")
        try:
            hook: Any = getattr(importlib.import_module(module), name)
        except Exception as error:
            guard.pass_on(error)
            reason = f"{type(error).__name__}: {error}"
            _logger.warning("%s=%.100r cannot be imported (%s): no hook is called", *_setting(target), reason)
            continue
        if isinstance(hook, Hooks):
            yield hook
        elif callable(hook):
            yield Hooks(before_operation=hook)
        else:
            _logger.warning("%s=%.100r is neither Hooks nor a function: no hook is called", *_setting(target))


def _setting(target: str) -> tuple[str, str]:
    return OTEL_PYTHON_TORCHDIST_HOOKS, target


@dataclass(frozen=True, slots=True)
class Observers:
    """The chosen observers of tensors.

    Attributes:
        hooks: The user's hooks.
        synchronizes: Whether devices are synchronized around collectives.
        numerics: Observer of the values of tensors, or None.
        compare_parameters: Interval in steps at which replicas' parameters are compared; 0 for never.
    """

    hooks: tuple[Hooks, ...] = ()
    synchronizes: bool = False
    numerics: NumericsObserver | None = None
    compare_parameters: int = 0

    @property
    def has_checks(self) -> bool:
        """Whether values in tensors are checked or compared."""
        return self.numerics is not None or self.compare_parameters > 0

    @property
    def needs_tensors(self) -> bool:
        """Whether an observer needs the tensors."""
        return bool(self.hooks) or self.numerics is not None

    def checks_values(self, rank: int) -> bool:
        """Return whether all inputs of a rank's operations are checked for finiteness."""
        numerics = self.numerics
        return numerics is not None and numerics.mode is NumericsMode.ALL and numerics.is_for(rank)

    @property
    def is_empty(self) -> bool:
        """Whether operations call no observer."""
        return not self.needs_tensors and not self.synchronizes


def chosen_observers(config: Config, arguments: dict[str, Any]) -> Observers:
    """Return the observers in the settings and the arguments of `instrument`. Warn if they rule out native recording.

    Without observers, this function is not called, and this module is not imported: see `Config.observes_tensors`.
    """
    is_off = config.numerics is NumericsMode.OFF
    observers = Observers(
        hooks=(*given_hooks(arguments), *load_hooks(config.hooks)),
        synchronizes=config.synchronize,
        numerics=None if is_off else NumericsObserver(config.numerics, config.numerics_every, config.numerics_ranks),
        compare_parameters=config.compare_parameters,
    )
    if not observers.is_empty and config.capture is CaptureKernel.NATIVE:
        _logger.warning(
            "%s=native: recording in Python, because hooks, numerics and synchronized timing require it",
            OTEL_PYTHON_TORCHDIST_CAPTURE,
        )
    return observers
