"""Windows of a process group, into which ranks put data without the peer taking part; torch has them from 2.15 on.

Creating a window is a collective: all members enter it, in the same order as their other collectives. Operations on a
window are recorded as enqueued.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

from torch.distributed import ProcessGroup, distributed_c10d

from otel_torchdist import guard
from otel_torchdist.capture.one_sided.symmetric_memory import Issuing, OneSided, schema_of
from otel_torchdist.capture.part import Part
from otel_torchdist.capture.torch_api import Patches

_NEW_WINDOW: Final = schema_of("new_window", None, 0, 1)
_PEERS: Final = {"put": (1, "dst_rank"), "signal": (0, "peer_rank"), "wait_signal": (0, "peer_rank")}
"""Operations of a window, with the position and the name of the argument that holds the peer."""


class Windows(Part):
    """Follows the windows of process groups."""

    def __init__(self, one_sided: OneSided) -> None:
        self._one_sided = one_sided
        self._groups: weakref.WeakKeyDictionary[Any, ProcessGroup] = weakref.WeakKeyDictionary()

    def hook(self, patches: Patches, group: Any = ProcessGroup, window: Any = None) -> None:
        """Patch windows if this torch has them.

        Args:
            patches: Replaces attributes, and restores them later.
            group: The class of process groups.
            window: The class of windows; torch's if not given.
        """
        patches.replace(group, "new_window", self._make_new_window)
        owner = getattr(distributed_c10d, "Window", None) if window is None else window
        for name in _PEERS if owner is not None else ():
            patches.replace(owner, name, lambda original, name=name: self._make_operation(name, original))

    def _make_new_window(self, original: Callable[..., Any]) -> Callable[..., Any]:
        one_sided = self._one_sided

        def new_window(group: ProcessGroup, tensor: Any = None) -> Any:
            described = [] if tensor is None else [tensor]
            call = one_sided.begin_collective(group, _NEW_WINDOW, (group, described))
            with Issuing(call, one_sided.end_collective):
                window = original(group, tensor)
            with guard.guarded("window"):
                self._groups[window] = group
            return window

        return new_window

    def _make_operation(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        schema = schema_of(name, None, 0, 1)
        one_sided = self._one_sided

        def operation(window: Any, *args: Any, **kwargs: Any) -> Any:
            call = None
            with guard.guarded("window"):
                group = self._groups.get(window)
                if group is not None:
                    tensor = (args[0] if args else kwargs["tensor"]) if name == "put" else None
                    described = [] if tensor is None else [tensor]
                    call = one_sided.begin(group, schema, (group, described), _peer_of(name, args, kwargs))
            with Issuing(call, one_sided.end):
                return original(window, *args, **kwargs)

        return operation


def _peer_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    position, keyword = _PEERS[name]
    return int(args[position] if len(args) > position else kwargs[keyword])
