"""How the ranks of the scripts that are restarted come together."""

from __future__ import annotations

import importlib
from datetime import timedelta

import torch.distributed as dist

PATIENCE = timedelta(seconds=60)


def join(backend: str, attempt: int) -> int:
    """Create the default group; returns this rank.

    With gloo, or, since gloo itself reads addresses of the dead attempt from a store that is kept, with the fake
    backend over the same store; the ranks then meet in the store before they communicate.
    """
    if backend == "fake":
        importlib.import_module("torch.testing._internal.distributed.fake_pg")  # registers it
    store, rank, size = next(dist.rendezvous("env://", timeout=PATIENCE))
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    if backend == "fake":
        store.set(f"{attempt}/{rank}", "here")
        store.wait([f"{attempt}/{other}" for other in range(size)], PATIENCE)
    return rank
