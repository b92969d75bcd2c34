"""When a pipeline's stages rehearse: before its first step each runs its module on uninitialized memory.

From that `PipelineStage` learns shapes. What is sent meanwhile, by tensor parallelism for example, may hold anything,
and is thrown away.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from threading import get_native_id
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist import guard
from otel_torchdist.system.when_imported import when_imported

if TYPE_CHECKING:
    from types import ModuleType

    from otel_torchdist.capture.core.torch_api import Patches

STAGES: Final = "torch.distributed.pipelining.stage"
_REHEARSE: Final = ("_prepare_forward_infra", "_prepare_backward_infra")
"""Private to torch, and only the first is in all versions. Without them garbage may be found that means nothing."""


class Rehearsals:
    """Knows whether a stage rehearses."""

    def __init__(self, patches: Patches) -> None:
        """None is followed yet; `patches` replaces methods, and restores them later."""
        self._patches = patches
        self._is_followed = False
        self._threads: set[int] = set()

    @property
    def are_on(self) -> bool:
        """Whether one is in progress, in whichever thread: autograd's threads take part in it."""
        return bool(self._threads)

    def follow(self) -> None:
        """Follow them from now on, also once pipelines are imported."""
        self._is_followed = True
        when_imported(STAGES, functools.partial(_imported, weakref.ref(self)))

    def unfollow(self) -> None:
        """Follow none any more; what is replaced is restored with all patches."""
        self._is_followed = False
        self._threads.clear()

    def imported(self, module: ModuleType) -> None:
        """Follow those of the module of stages."""
        for owner in [one for one in vars(module).values() if isinstance(one, type)] if self._is_followed else ():
            for name in _REHEARSE:
                if owner.__module__ == module.__name__ and name in vars(owner):
                    self._patches.replace(owner, name, self._make)

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


def _imported(rehearsals: weakref.ref[Rehearsals], module: ModuleType) -> None:
    with guard.guarded("rehearsals"):
        this = rehearsals()
        if this is not None:
            this.imported(module)
