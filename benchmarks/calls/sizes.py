"""Calls with few and many ranks, and with few and many tensors, on the `fake` backend."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.calls.collectives import ELEMENTS, Call, Collective, single
from benchmarks.calls.orders import WORLD_SIZE
from benchmarks.calls.size_names import ALL_GATHER, ALL_REDUCE, FIRST_CALL, NEW_GROUP, TENSORS, coalesced

MAX_SHAPES = 1 << 16


def calls_of_all_sizes(world_size: int) -> dict[str, Collective]:
    """Return the calls for a world of this size, by name."""
    tensor = torch.ones(ELEMENTS)
    calls: dict[str, Call] = {
        ALL_REDUCE: lambda: dist.all_reduce(tensor),
        FIRST_CALL: _all_reduce_of_a_new_shape(),
        NEW_GROUP: _new_group,
    }
    if world_size in TENSORS:
        calls[ALL_GATHER] = _all_gather(world_size)
    if world_size == WORLD_SIZE:
        calls |= {coalesced(tensors): _all_reduce_coalesced(tensors) for tensors in TENSORS}
    return {name: single(name, tensor.nbytes, call) for name, call in calls.items()}


def _all_reduce_of_a_new_shape() -> Call:
    """Return a call that has a new shape each time, so that no cache helps."""
    numbers = torch.ones(MAX_SHAPES)
    shapes = count(ELEMENTS + 1)

    def all_reduce() -> None:
        dist.all_reduce(numbers[: next(shapes)])

    return all_reduce


def _new_group() -> None:
    group: Any = dist.new_group()
    dist.destroy_process_group(group)


def _all_gather(world_size: int) -> Call:
    tensor = torch.ones(ELEMENTS)
    gathered = [torch.empty(ELEMENTS) for _ in range(world_size)]

    def all_gather() -> None:
        dist.all_gather(gathered, tensor)

    return all_gather


def _all_reduce_coalesced(tensors: int) -> Call:
    """Return a coalesced call with `dist._coalescing_manager`, the current API for it."""
    reduced = [torch.ones(ELEMENTS) for _ in range(tensors)]
    group = dist.group.WORLD
    assert group is not None

    def all_reduce_coalesced() -> None:
        group.allreduce_coalesced(reduced).wait()

    return all_reduce_coalesced
