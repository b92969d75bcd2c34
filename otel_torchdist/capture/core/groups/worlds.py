"""Identifies worlds: the default world, and the worlds of standalone process groups.

A standalone process group is created without `init_process_group`, with a store and rank numbers of its own. Libraries
for reinforcement learning connect a trainer and its inference engines this way. Rank 1 of such a group is not rank 1 of
the default group. Its members share its store, so the location of the store (a port or a file) identifies its world.
"""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple

import torch
from torch.distributed import ProcessGroup

from otel_torchdist.capture.core.torch_api import backend_and_store, default_group, store_location, text_of_group
from otel_torchdist.tape.identity import MAX_WORLD_BYTES


class GroupWorld(NamedTuple):
    """The world of a group, and this process's rank in it.

    Attributes:
        name: Name of the world, `world` in `GroupName`; '' for the default world.
        rank: This process's rank in the world, `world_rank` in `GroupName`.
        store: Location of the store: `port 29500`, or the path of a file; '' for the default world.
    """

    name: str = ""
    rank: int = -1
    store: str = ""

    @property
    def is_standalone(self) -> bool:
        """Whether the world is that of a standalone process group."""
        return bool(self.name)


DEFAULT_WORLD: Final = GroupWorld()
SHOWS_STORES: Final = hasattr(ProcessGroup, "get_group_store")
"""Whether torch exposes the store of a standalone process group. torch 2.8 does not."""


def standalone_world(name: str, store: Any, rank: int, size: int) -> GroupWorld:
    """Return the world of a standalone process group that this process creates through a store.

    A store without a known location, such as a fake store, means the default world, unless a default group exists.
    """
    location = store_location(store)
    if not location and not torch.distributed.is_initialized():
        return DEFAULT_WORLD
    location = location or f"process {os.getpid()}"  # unknown to other processes
    text = f"{name}@{location.removeprefix('port ')}/{size}"
    return GroupWorld(text.encode("utf-8", "replace")[-MAX_WORLD_BYTES:].decode("utf-8", "ignore"), rank, location)


def world_of(group: ProcessGroup) -> GroupWorld:
    """Return the world of a group whose creation was not recorded. A different store means a different world."""
    store = _store_of(group)
    if torch.distributed.is_initialized():
        default = default_group()
        if group is default or store_location(store) == store_location(_store_of(default)):
            return DEFAULT_WORLD
    if not store_location(store):
        return DEFAULT_WORLD
    return standalone_world(text_of_group(group, "group_name"), store, group.rank(), group.size())


def _store_of(group: Any) -> Any:
    """Return the store of a group, or None if torch does not expose it."""
    _, store = backend_and_store(group)
    if store is not None:
        return store
    try:
        return group.get_group_store()
    except (AttributeError, RuntimeError):
        return None
