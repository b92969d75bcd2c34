"""Finds the hooks that a setting names."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from otel_torchdist import guard
from otel_torchdist.capture.observers.hooks import Hooks
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_HOOKS

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
