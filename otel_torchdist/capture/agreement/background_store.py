"""The job's store, for threads of ours: a connection of their own, and calls that may outlive Python."""

from __future__ import annotations

import datetime
from typing import Any, Final

import torch.distributed

from otel_torchdist.this_process.abandoned_calls import BACKGROUND_CALLS

_distributed: Any = torch.distributed  # its types lack the stores
_SENDS: Final[tuple[Any, ...]] = (_distributed.TCPStore, _distributed.FileStore, _distributed.HashStore)


class BackgroundStore:
    """A clone of a store: another thread of the program may block in the original for minutes."""

    def __init__(self, store: Any) -> None:
        """Connect.

        Raises:
            RuntimeError: The store cannot be cloned: the `fake` backend's, MPI's, or one written in Python.
            AttributeError: There is no store.
        """
        with BACKGROUND_CALLS:
            self._clone = store.clone()

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Bound how long a call may wait for the store."""
        with BACKGROUND_CALLS:
            self._clone.set_timeout(timeout)

    def set(self, key: str, value: str) -> None:
        """Set a value; the store does not acknowledge it."""
        with BACKGROUND_CALLS:
            self._clone.set(key, value)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return its new value."""
        with BACKGROUND_CALLS:
            return self._clone.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys have values."""
        with BACKGROUND_CALLS:
            return self._clone.check(keys)

    def get(self, key: str) -> bytes:
        """Return a value; waits for it if there is none."""
        with BACKGROUND_CALLS:
            return self._clone.get(key)


def sets_at_once(store: Any) -> bool:
    """Return whether `set` on the program's own store only sends, or stores in this machine.

    `TCPStore.set` waits for no answer. Stores written in Python may do anything.
    """
    while type(store) is _distributed.PrefixStore:
        store = store.underlying_store
    return type(store) in _SENDS
