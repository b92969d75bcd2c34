"""Two ranks in which another library has kernels of its own for c10d's operations.

Arguments: which came first (`theirs`, `ours`; `alone` without us), and the dispatch key of ours at which they have a
kernel too.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.ranks.rank import join, rank, say, start_capture

CPU = torch.device("cpu")


class TheirLibrary:
    """Counts calls: before autograd, in a backend's place, and where our own kernels are."""

    def __init__(self, shared_key: str) -> None:
        self.passed: Counter[str] = Counter()
        self._library = torch.library.Library("c10d", "IMPL")
        self._library.impl("allreduce_", self._before_autograd, "AutogradCPU", with_keyset=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._library.impl("broadcast_", self._as_backend, "CPU")
        self._shared_key = shared_key
        if shared_key:
            self._library.impl("_allgather_base_", self._in_our_place, shared_key, with_keyset=True)

    def _before_autograd(self, keys: Any, *args: Any) -> Any:
        self.passed["before autograd"] += 1
        handle = torch.ops.c10d.allreduce_.default._handle
        return handle.redispatch_boxed(keys.remove(torch._C.DispatchKey.AutogradCPU), *args)

    def _as_backend(self, tensors: list[torch.Tensor], group: Any, root: int, *_: Any) -> Any:
        self.passed["as backend"] += 1
        options = dist.BroadcastOptions()
        options.rootRank = root
        return tensors, ProcessGroup.unbox(group)._get_backend(CPU).broadcast(tensors, options).boxed()

    def _in_our_place(self, keys: Any, *args: Any) -> Any:
        self.passed["in our place"] += 1
        handle = torch.ops.c10d._allgather_base_.default._handle
        return handle.redispatch_boxed(keys.remove(getattr(torch._C.DispatchKey, self._shared_key)), *args)

    def leave(self) -> None:
        """Remove the kernels."""
        self._library._destroy()


class Watching(TorchDispatchMode):
    """A user's mode, such as a counter of communication."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count c10d's operations and pass all of them on."""
        if func.namespace == "c10d":
            self.seen[func.name().removeprefix("c10d::")] += 1
        return func(*args, **(kwargs or {}))


def communicate() -> list[float]:
    """One of each, and one under the user's mode; the results."""
    reduced, spread, gathered = torch.ones(3), torch.full((4,), float(rank())), torch.empty(4)
    dist.all_reduce(reduced)
    dist.broadcast(spread, 1)
    work = dist.all_gather_into_tensor(gathered, torch.full((2,), float(rank())), async_op=True)
    assert work is not None
    work.wait()
    with watching:
        dist.all_reduce(reduced)
        dist.barrier()
    return [float(reduced[0]), float(spread[0]), *gathered.tolist()]


def report() -> None:
    """Communicate, and report what has passed through them so far."""
    say(results=communicate(), passed=theirs.passed, seen=watching.seen)


warnings.simplefilter("ignore", FutureWarning)
watching = Watching()
order, shared_key = sys.argv[1:]
theirs = TheirLibrary(shared_key) if order != "ours" else None
capture = start_capture() if order != "alone" else None
theirs = theirs or TheirLibrary(shared_key)
join()
report()
if capture is not None:
    capture.uninstall()
report()
theirs.leave()
report()
