"""The timed calls. They are small, so that added costs are visible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.calls.orders import Kind

ELEMENTS: Final = 4
COALESCED: Final = 8
"""Calls per coalesced block."""
PEER: Final = 1

Call: TypeAlias = Callable[[], object]
Wrap: TypeAlias = Callable[[str, int, Call], Call]
"""Instruments an operation, given its name and the bytes that this rank contributes."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A call as a user writes it.

    Attributes:
        build: Returns the call, built from wrapped operations.
        kind: The operations that it consists of.
    """

    build: Callable[[Wrap], Call]
    kind: Kind


def single(operation: str, message_bytes: int, call: Call) -> Collective:
    """Return a call of one operation."""
    return Collective(lambda wrap: wrap(operation, message_bytes, call), Kind())


def join_fake_world(size: int) -> None:
    """Become rank 0 of a world of the given size on the `fake` backend."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)


def join_gloo_alone() -> None:
    """Become the only rank of a world on gloo."""
    stores: Any = dist  # some are missing in its type stubs
    dist.init_process_group("gloo", store=stores.HashStore(), rank=0, world_size=1)


def collectives(world_size: int) -> dict[str, Collective]:
    """Return the calls, by name in the report."""
    tensor = torch.ones(ELEMENTS)
    gathered = torch.empty(ELEMENTS * world_size)
    size = tensor.nbytes
    # If torch has the newer name of this function, the older one warns on every call.
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

    def block(wrap: Wrap) -> Call:
        reduce = wrap("all_reduce", size, all_reduce)

        def coalesced() -> None:
            with _coalescing_manager():
                for _ in range(COALESCED):
                    reduce()

        return coalesced

    return {
        "all_reduce": single("all_reduce", size, all_reduce),
        "all_reduce, async + wait": single("all_reduce", size, all_reduce_and_wait),
        "all_gather_into_tensor": single("all_gather_into_tensor", size, all_gather_into_tensor),
        "broadcast": single("broadcast", size, broadcast),
        "barrier": single("barrier", 0, barrier),
        f"all_reduce, {COALESCED} coalesced": Collective(block, Kind(operations=COALESCED)),
    }


def point_to_point() -> dict[str, Collective]:
    """Return a send and the receive of its answer, by name in the report."""
    tensor = torch.ones(ELEMENTS)

    def build(wrap: Wrap) -> Call:
        send = wrap("send", tensor.nbytes, lambda: dist.send(tensor, PEER))
        receive = wrap("recv", tensor.nbytes, lambda: dist.recv(tensor, PEER))

        def exchange() -> None:
            send()
            receive()

        return exchange

    return {"send, recv": Collective(build, Kind(operations=2, records=2))}
