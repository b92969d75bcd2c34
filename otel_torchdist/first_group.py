"""Waits for the first process group of this process, and calls back just before it is created.

Nothing may happen earlier: `import torch` also runs in torchrun's own process and in DataLoader workers, and a
notebook launcher forks ranks from a process that is not a rank itself. Imports only the standard library.
"""

import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from otel_torchdist import guard

C10D = "torch.distributed.distributed_c10d"
# Every first group is created through one of these: ``init_device_mesh`` bypasses ``init_process_group``, and some
# libraries create the default group themselves.
_CREATORS = ("_new_process_group_helper", "_update_default_pg")


def when_first_group(switch_on: Callable[[], None]) -> Callable[[], object]:
    """Have ``switch_on`` called before the next process group is created, however late c10d is imported.

    Returns:
        A function that stops waiting.
    """
    waiting = _FirstGroup(switch_on)
    c10d = sys.modules.get(C10D)
    if c10d is not None:
        waiting.stand_in(c10d)
    else:
        from wrapt import register_post_import_hook

        register_post_import_hook(waiting.stand_in, C10D)
    return waiting.leave


class _FirstGroup:
    """Replaces c10d's functions that create groups until one of them is called, then restores them.

    A forked child inherits it, so a rank that a notebook launcher forks is a rank like any other.
    """

    def __init__(self, switch_on: Callable[[], None]) -> None:
        self._switch_on = switch_on
        self._waiting = True
        self._originals: dict[str, Any] = {}
        self._stand_ins: dict[str, Any] = {}
        self._c10d: ModuleType | None = None

    def stand_in(self, c10d: ModuleType) -> None:
        """Replace the creators."""
        if not self._waiting:
            return
        with guard.guarded("waiting for the first group"):
            self._c10d = c10d
            self._originals = {name: getattr(c10d, name) for name in _CREATORS}
            self._stand_ins = {name: self._make(name) for name in _CREATORS}
            for name, stand_in in self._stand_ins.items():
                setattr(c10d, name, stand_in)

    def _make(self, name: str) -> Any:
        @wraps(self._originals[name])
        def creator(*args: Any, **kwargs: Any) -> Any:
            return self._creator(name)(*args, **kwargs)

        return creator

    def _creator(self, name: str) -> Any:
        """Switch on at the first call; return what to call in the stand-in's place."""
        if not self._waiting:
            return self._originals[name]
        reachable = self.leave()
        with guard.guarded("switching on"):
            self._switch_on()
        # By now capture's creator is installed there. A foreign wrapper of our stand-in is already on the stack.
        return getattr(self._c10d, name) if name in reachable else self._originals[name]

    def leave(self) -> set[str]:
        """Restore the originals; return the names whose stand-in no other code had wrapped."""
        self._waiting = False
        unwrapped = {name for name, stand_in in self._stand_ins.items() if getattr(self._c10d, name) is stand_in}
        for name in unwrapped:
            setattr(self._c10d, name, self._originals[name])
        return unwrapped
