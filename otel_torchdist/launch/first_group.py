"""Calls a function just before this process creates its first process group or joins RPC.

Nothing may happen earlier: `import torch` also runs in torchrun's process and in DataLoader workers, and a notebook
launcher forks ranks from a process that is not a rank. Imports only the standard library.
"""

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any, Final, NamedTuple, cast

from otel_torchdist import guard
from otel_torchdist.system.when_imported import when_imported

C10D: Final = "torch.distributed.distributed_c10d"
RPC: Final = "torch.distributed.rpc"
# Every first group is created through one of these: ``init_device_mesh`` bypasses ``init_process_group``, and some
# libraries create the default group themselves. In ``rendezvous``, the rank that hosts the store waits for all others.
_CREATORS: Final = {
    C10D: (
        *("_new_process_group_helper", "_update_default_pg", "rendezvous"),
        *("ProcessGroup.__init__", "ProcessGroupGloo.__init__"),
    ),
    RPC: ("_init_rpc_backend",),
}
"""Functions that create groups. Some inference libraries only call the constructors."""
_OPTIONAL: Final = ("ProcessGroupGloo",)
"""Classes that are missing in some builds of torch."""


def when_first_group(switch_on: Callable[[], None]) -> Callable[[], object]:
    """Call ``switch_on`` before the next process group is created or RPC is joined, however late c10d is imported.

    Returns:
        A function that stops waiting.
    """
    waiting = _FirstGroup(switch_on)
    for name in _CREATORS:
        when_imported(name, waiting.stand_in)
    return waiting.leave


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
        if owner in _OPTIONAL and not hasattr(module, owner):
            continue
        creators.append(_Creator(getattr(module, owner) if owner else module, name))
        getattr(*creators[-1])  # raises in an unknown torch: the error names the missing function
    return creators


class _FirstGroup:
    """The stand-ins for functions that create groups, until one of them is called.

    A forked child inherits them, so ranks that a notebook launcher forks are covered.
    """

    def __init__(self, switch_on: Callable[[], None]) -> None:
        self._switch_on = switch_on
        self._waiting = True
        self._originals: dict[_Creator, Any] = {}
        self._stand_ins: dict[_Creator, Any] = {}

    def stand_in(self, module: ModuleType) -> None:
        """Replace the creators of a module. A build without RPC has none."""
        if not self._waiting:
            return
        with guard.guarded("waiting for the first group"):
            if module.__name__ == RPC and not hasattr(module, "init_rpc"):
                return
            creators = _creators_in(module)
            self._originals |= {creator: creator.current for creator in creators}
            for creator in creators:
                self._stand_ins[creator] = stand_in = self._make(creator)
                setattr(*creator, stand_in)

    def _make(self, creator: _Creator) -> Any:
        @wraps(getattr(*creator))
        def create(*args: Any, **kwargs: Any) -> Any:
            return self._target_of(creator)(*args, **kwargs)

        return create

    def _target_of(self, creator: _Creator) -> Any:
        """Switch on at the first call. Return the function to call instead of the stand-in."""
        if not self._waiting:
            return self._original_of(creator)
        unwrapped = self.leave()
        with guard.guarded("switching on"):
            self._switch_on()
        # Capture has patched the restored functions by now. A foreign wrapper of our stand-in is already on the stack.
        return getattr(*creator) if creator in unwrapped else self._original_of(creator)

    def _original_of(self, creator: _Creator) -> Any:
        """Return the original as an unbound function."""
        original = self._originals[creator]
        return original.__get__(None, creator.owner) if isinstance(creator.owner, type) else original

    def leave(self) -> set[_Creator]:
        """Restore the originals. Return the creators whose stand-in no other code has wrapped."""
        self._waiting = False
        unwrapped = {creator for creator, stand_in in self._stand_ins.items() if creator.current is stand_in}
        for creator in unwrapped:
            setattr(*creator, self._originals[creator])
        return unwrapped
