"""Backends of a third party, as an installed package has them: torch finds them by entry points, and by nothing else.

One is written in Python, one in C++, and one is a process group in Python.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, ProcessGroupGloo
from torch.distributed import ProcessGroup, Work  # pyright: ignore[reportPrivateImportUsage]  # as torch's manual has it

NAME, NAME_IN_CPP, NAME_OF_GROUP = "tiny", "tiny_in_cpp", "tiny_group"


class DoneWork(Work):
    """A Work whose operation is over."""

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def wait(self, timeout: Any = None) -> bool:
        """Return at once."""
        return True


class TinyBackend(Backend):
    """A backend that exchanges pickles in the store."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._store = store
        self._calls = 0

    def name(self) -> str:
        """The backend's own name."""
        return NAME

    def getBackendName(self) -> str:
        """The same for older torch."""
        return NAME

    def allreduce(self, tensors: Any, options: Any = None) -> Work:
        """Add up the tensors of all ranks."""
        parts = self._exchange([tensor.tolist() for tensor in tensors])
        for index, tensor in enumerate(tensors):
            tensor.copy_(torch.tensor([part[index] for part in parts]).sum(0))
        return DoneWork()

    def broadcast(self, tensors: Any, options: Any = None) -> Work:
        """Copy the tensors of the root."""
        root = self._exchange([tensor.tolist() for tensor in tensors])[options.rootRank]
        for tensor, values in zip(tensors, root, strict=True):
            tensor.copy_(torch.tensor(values))
        return DoneWork()

    def barrier(self, options: Any = None) -> Work:
        """Wait for all ranks."""
        self._exchange(None)
        return DoneWork()

    def _exchange(self, mine: Any) -> list[Any]:
        self._calls += 1
        self._store.set(f"{self._calls}/{self.rank()}", pickle.dumps(mine))
        return [pickle.loads(self._store.get(f"{self._calls}/{rank}")) for rank in range(self.size())]


class TinyGroup(ProcessGroup):
    """A process group in Python: its sums are operations of a group inside, its barrier bypasses c10d."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._barrier = TinyBackend(store, rank, size)
        self._inner = ProcessGroup(store, rank, size)
        self._inner._register_backend(
            torch.device("cpu"), ProcessGroup.BackendType.CUSTOM, ProcessGroupGloo(store, rank, size, timeout)
        )
        self._inner._set_default_backend(ProcessGroup.BackendType.CUSTOM)

    def getBackendName(self) -> str:
        """Its name."""
        return NAME_OF_GROUP

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Pass the sum on to the group inside."""
        return self._inner.allreduce(tensors, opts)

    def barrier(self, opts: Any = None) -> Work:
        """Wait for all ranks."""
        return self._barrier.barrier(opts)


def make(store: Any, rank: int, size: int, timeout: Any) -> TinyBackend:
    """Create the backend, with the signature that torch requires."""
    return TinyBackend(store, rank, size)


def register() -> None:
    """Register the backend in Python: what the entry point names."""
    dist.Backend.register_backend(NAME, make, devices="cpu")


def register_in_cpp() -> None:
    """Register a backend in C++: gloo's, under another name."""
    dist.Backend.register_backend(NAME_IN_CPP, ProcessGroupGloo, devices="cpu")


def register_group() -> None:
    """Register the process group in Python."""
    dist.Backend.register_backend(NAME_OF_GROUP, TinyGroup, devices="cpu")
