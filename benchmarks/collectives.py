"""The calls that are timed: small ones, on the `fake` backend, which does no I/O and so shows what is added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.orders import WORLD_SIZE

ELEMENTS = 4

Call: TypeAlias = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Collective:
    """One call as a user writes it.

    Attributes:
        operation: Name of the operation.
        message_bytes: Bytes that this rank contributes.
        call: Makes the call.
    """

    operation: str
    message_bytes: int
    call: Call


def join_world(size: int) -> None:
    """Become rank 0 of a world of the given size on the `fake` backend."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)


def collectives() -> dict[str, Collective]:
    """The calls, by their name in the report."""
    tensor = torch.ones(ELEMENTS)
    gathered = torch.empty(ELEMENTS * WORLD_SIZE)
    size = tensor.nbytes
    # Where torch has the newer name of this function, the older one warns on every call.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

    def all_reduce() -> None:
        dist.all_reduce(tensor)

    def all_reduce_and_wait() -> None:
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()

    def all_gather_into_tensor() -> None:
        all_gather(gathered, tensor)

    def broadcast() -> None:
        dist.broadcast(tensor, 0)

    def barrier() -> None:
        dist.barrier()

    return {
        "all_reduce": Collective("all_reduce", size, all_reduce),
        "all_reduce, async + wait": Collective("all_reduce", size, all_reduce_and_wait),
        "all_gather_into_tensor": Collective("all_gather_into_tensor", size, all_gather_into_tensor),
        "broadcast": Collective("broadcast", size, broadcast),
        "barrier": Collective("barrier", 0, barrier),
    }
