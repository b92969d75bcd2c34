"""Detects rehearsals of pipeline stages: before the first step, each runs its module on uninitialized memory.

`PipelineStage` infers shapes this way. Messages sent meanwhile, for example by tensor parallelism, contain garbage.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from threading import get_native_id
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist import guard
from otel_torchdist.capture.upstream import training
from otel_torchdist.system.when_imported import when_imported

if TYPE_CHECKING:
    from types import ModuleType

    from otel_torchdist.capture.core.torch_api import Patches

STAGES: Final = training.REHEARSE_FORWARD.module
_REHEARSALS: Final = (training.REHEARSE_FORWARD, training.REHEARSE_BACKWARD)
"""Private methods of torch. Only the first exists in all versions. Without them, garbage may be reported as NaN."""


class Rehearsals:
    """The rehearsals in progress."""

    def __init__(self, patches: Patches) -> None:
        """Initialize without hooks. `patches` replaces methods, and restores them later."""
        self._patches = patches
        self._is_followed = False
        self._threads: set[int] = set()

    @property
    def are_running(self) -> bool:
        """Whether a rehearsal is in progress in any thread: autograd's threads take part."""
        return bool(self._threads)

    def follow(self) -> None:
        """Follow rehearsals, also if pipelines are imported later."""
        self._is_followed = True
        when_imported(STAGES, functools.partial(_imported, weakref.ref(self)))

    def unfollow(self) -> None:
        """Stop following rehearsals. `patches` restores the methods."""
        self._is_followed = False
        self._threads.clear()

    def imported(self, module: ModuleType) -> None:
        """Patch the classes of stages in their module."""
        for owner in [value for value in vars(module).values() if isinstance(value, type)] if self._is_followed else ():
            for symbol in _REHEARSALS:
                if owner.__module__ == module.__name__ and symbol.name in vars(owner):
                    self._patches.replace(owner, symbol, self._make)

    def _make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def rehearse(*args: Any, **kwargs: Any) -> Any:
            thread = get_native_id()
            self._threads.add(thread)
            try:
                return original(*args, **kwargs)
            finally:
                self._threads.discard(thread)

        return rehearse


def _imported(reference: weakref.ref[Rehearsals], module: ModuleType) -> None:
    with guard.guarded("rehearsals"):
        rehearsals = reference()
        if rehearsals is not None:
            rehearsals.imported(module)
