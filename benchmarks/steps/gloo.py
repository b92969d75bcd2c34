"""A job of two ranks on gloo, on this machine."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from benchmarks.steps.training import RANKS, Place

PATIENCE = timedelta(seconds=120)


def join_job(place: Place) -> None:
    """Join the job as a rank, with one thread for arithmetic."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ["LOCAL_WORLD_SIZE"] = str(RANKS)  # as launchers do
    dist.init_process_group(
        "gloo", init_method=f"file://{place.store}", rank=place.rank, world_size=RANKS, timeout=PATIENCE
    )


def issued() -> int:
    """Return the number of operations issued to gloo so far, in all groups."""
    return sum(_issued(group) for group in distributed_c10d._world.pg_map)


def _issued(group: Any) -> int:
    return group._get_sequence_number_for_group()
