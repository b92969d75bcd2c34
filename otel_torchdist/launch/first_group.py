"""Calls a function just before this process creates its first process group or joins RPC.

Nothing may happen earlier: `import torch` also runs in torchrun's process and in DataLoader workers, and a notebook
launcher forks ranks from a process that is not a rank. Imports nothing but the table of torch's symbols.
"""

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any, Final, NamedTuple, cast

from otel_torchdist import guard
from otel_torchdist.capture.upstream import core, rpc
from otel_torchdist.system.when_imported import when_imported

C10D: Final = "torch.distributed.distributed_c10d"
RPC: Final = "torch.distributed.rpc"
# Every first group is created through one of these: ``init_device_mesh`` bypasses ``init_process_group``, and some
# libraries create the default group themselves. In ``rendezvous``, the rank that hosts the store waits for all others.
_CREATORS: Final = {
    C10D: (
        *(core.NEW_GROUP_HELPER.name, core.UPDATE_DEFAULT_GROUP.name, core.RENDEZVOUS.name),
        *("ProcessGroup.__init__", "ProcessGroupGloo.__init__"),
    ),
    RPC: (rpc.JOIN.name,),
}
"""Functions that create groups. Some inference libraries only call the constructors."""


def when_first_group(switch_on: Callable[[], None]) -> Callable[[], object]:
    """Call ``switch_on`` before the next process group is created or RPC is joined, however late c10d is imported.

    Returns:
        A function that stops waiting and restores torch.
    """
    patched = _PatchedCreators(switch_on)
    for name in _CREATORS:
        when_imported(name, patched.patch)
    return patched.restore


class _Creator(NamedTuple):
    """A function that creates groups or joins RPC, in a module or a class."""

    owner: Any
    name: str

    @property
    def current(self) -> Any:
        """The current attribute, as stored in the owner: `getattr` on a pybind method returns another object."""
        return cast("dict[str, Any]", vars(self.owner))[self.name]


def _creators_in(module: ModuleType) -> list[_Creator]:
    creators: list[_Creator] = []
    for path in _CREATORS[module.__name__]:
        owner, _, name = path.rpartition(".")
        creator = _Creator(getattr(module, owner, None) if owner else module, name)
        if creator.owner is not None and creator.name in vars(creator.owner):  # some builds have no gloo
            creators.append(creator)
    if module.__name__ == C10D:
        core.NEW_GROUP_HELPER.report_if_missing(module)
    return creators


class _PatchedCreators:
    """Wrappers of the functions that create groups, until one of them is called.

    A forked child inherits them. This covers the ranks that a notebook launcher forks.
    """

    def __init__(self, switch_on: Callable[[], None]) -> None:
        self._switch_on = switch_on
        self._is_waiting = True
        self._originals: dict[_Creator, Any] = {}
        self._wrappers: dict[_Creator, Any] = {}

    def patch(self, module: ModuleType) -> None:
        """Wrap the creators in a module. A build without RPC has none."""
        if not self._is_waiting:
            return
        with guard.guarded("waiting for the first group"):
            if module.__name__ == RPC and not hasattr(module, "init_rpc"):
                return
            creators = _creators_in(module)
            self._originals |= {creator: creator.current for creator in creators}
            for creator in creators:
                self._wrappers[creator] = wrapper = self._wrapper_of(creator)
                setattr(*creator, wrapper)

    def _wrapper_of(self, creator: _Creator) -> Any:
        @wraps(getattr(*creator))
        def create(*args: Any, **kwargs: Any) -> Any:
            return self._target_of(creator)(*args, **kwargs)

        return create

    def _target_of(self, creator: _Creator) -> Any:
        """Switch on at the first call. Return the function to call."""
        if not self._is_waiting:
            return self._original_of(creator)
        unwrapped = self.restore()
        with guard.guarded("switching on"):
            self._switch_on()
        # Capture has patched the restored functions by now. If other code has wrapped our wrapper, its wrapper is
        # already on the stack, so the original is called.
        return getattr(*creator) if creator in unwrapped else self._original_of(creator)

    def _original_of(self, creator: _Creator) -> Any:
        """Return the original as an unbound function."""
        original = self._originals[creator]
        return original.__get__(None, creator.owner) if isinstance(creator.owner, type) else original

    def restore(self) -> set[_Creator]:
        """Restore the originals. Return the creators whose wrapper no other code has wrapped."""
        self._is_waiting = False
        unwrapped = {creator for creator, wrapper in self._wrappers.items() if creator.current is wrapper}
        for creator in unwrapped:
            setattr(*creator, self._originals[creator])
        return unwrapped
