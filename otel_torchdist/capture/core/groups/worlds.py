"""Identifies worlds: the default world, and worlds that a program makes by hand.

Libraries for reinforcement learning join a trainer and its inference engines in a separate world, beside the default
group, with a second store and new rank numbers. Ranks of such a world are not ranks of the default world. Its members
share its store, so the location of the store (a port or a file) identifies the world on all of them.
"""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple

import torch
from torch.distributed import ProcessGroup

from otel_torchdist.capture.core.torch_api import backend_and_store, default_group, store_place, text_of_group
from otel_torchdist.tape.identity import MAX_WORLD_BYTES


class PlaceInWorld(NamedTuple):
    """The world of a group, and this process's rank in it.

    Attributes:
        world: As in `GroupName`.
        rank: This process's rank in the world; `here` in `GroupName`.
        store: Location of the store: `port 29500`, or the path of a file; '' for the default world.
    """

    world: str = ""
    rank: int = -1
    store: str = ""

    @property
    def is_by_hand(self) -> bool:
        """Whether the program made the world by hand, beside the default world."""
        return bool(self.world)


DEFAULT_WORLD: Final = PlaceInWorld()
SHOWS_STORES: Final = hasattr(ProcessGroup, "get_group_store")
"""Whether torch exposes the store of a group that the program made. torch 2.8 does not."""


def world_by_hand(name: str, store: Any, rank: int, size: int) -> PlaceInWorld:
    """Return the world that this process makes through a store, and its rank in it.

    A store without a known location, such as a fake store, means the default world, unless a default group exists.
    """
    location = store_place(store)
    if not location and not torch.distributed.is_initialized():
        return DEFAULT_WORLD
    location = location or f"process {os.getpid()}"  # unknown to other processes
    text = f"{name}@{location.removeprefix('port ')}/{size}"
    return PlaceInWorld(text.encode("utf-8", "replace")[-MAX_WORLD_BYTES:].decode("utf-8", "ignore"), rank, location)


def world_of(group: ProcessGroup) -> PlaceInWorld:
    """Return the world of a group whose creation was not recorded. A different store means a different world."""
    store = _store_of(group)
    if torch.distributed.is_initialized():
        default = default_group()
        if group is default or store_place(store) == store_place(_store_of(default)):
            return DEFAULT_WORLD
    if not store_place(store):
        return DEFAULT_WORLD
    return world_by_hand(text_of_group(group, "group_name"), store, group.rank(), group.size())


def _store_of(group: Any) -> Any:
    """Return the store of a group, or None if torch does not expose it."""
    _, store = backend_and_store(group)
    if store is not None:
        return store
    try:
        return group.get_group_store()
    except (AttributeError, RuntimeError):
        return None
