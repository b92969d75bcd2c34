"""Worlds that a program makes by hand: which world a group is of, and under which name all its members know that.

Libraries for reinforcement learning join a trainer with its inference engines in a world of their own, beside the
default group: a second store, and ranks that are numbered anew. Such a group has no members of the default world but
those that are in both, so its ranks must not be taken for that one's. Its members have its store in common, by which
they are recognized: a port, or a file.
"""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple

import torch
from torch.distributed import ProcessGroup

from otel_torchdist.capture.core.torch_api import backend_and_store, default_group, store_place, text_of_group
from otel_torchdist.tape.identity import MAX_WORLD_BYTES


class PlaceInWorld(NamedTuple):
    """Which world a group is of.

    Attributes:
        world: As in `GroupName`.
        here: This process's rank there, as in `GroupName`.
        store: What its members have in common: `port 29500`, or the path of a file; '' for the default world.
    """

    world: str = ""
    here: int = -1
    store: str = ""

    @property
    def is_by_hand(self) -> bool:
        """Whether it is another world than that of the default group."""
        return bool(self.world)


DEFAULT_WORLD: Final = PlaceInWorld()
SHOWS_STORES: Final = hasattr(ProcessGroup, "get_group_store")
"""Whether torch shows the store of a group that it has not made itself. Torch 2.8 does not."""


def world_by_hand(name: str, store: Any, rank: int, size: int) -> PlaceInWorld:
    """Return the place of a process that makes a world of this name and size through a store.

    If the store does not show where it is, as fake ones do not, then it is the default world, unless there is one.
    """
    place = store_place(store)
    if not place and not torch.distributed.is_initialized():
        return DEFAULT_WORLD
    place = place or f"process {os.getpid()}"  # known to no other
    text = f"{name}@{place.removeprefix('port ')}/{size}"
    return PlaceInWorld(text.encode("utf-8", "replace")[-MAX_WORLD_BYTES:].decode("utf-8", "ignore"), rank, place)


def world_of(group: ProcessGroup) -> PlaceInWorld:
    """Return the world of a group whose creation was not seen: another than the default group's has another store."""
    store = _store_of(group)
    if torch.distributed.is_initialized():
        default = default_group()
        if group is default or store_place(store) == store_place(_store_of(default)):
            return DEFAULT_WORLD
    if not store_place(store):
        return DEFAULT_WORLD
    return world_by_hand(text_of_group(group, "group_name"), store, group.rank(), group.size())


def _store_of(group: Any) -> Any:
    """The store of a group; None if torch does not show it."""
    _, store = backend_and_store(group)
    if store is not None:
        return store
    try:
        return group.get_group_store()
    except (AttributeError, RuntimeError):
        return None
