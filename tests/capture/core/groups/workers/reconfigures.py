"""Three ranks form a group, and then two of them form it again without the third."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tests.support.ranks.rank import STORE, rank, say, start_capture, world_size
from tests.support.waiting import until

FIRST, SECOND = 1 << 40, (1 << 40) + 1


def form(uuid: int, members: list[int]) -> None:
    """Exchange handles through files, as an engine that knows the live members would, and form a group of them."""
    folder = Path(f"{os.environ[STORE]}-{uuid}")
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{rank()}"
    hidden.write_text(dist._get_reconfigure_handle())
    hidden.rename(folder / str(rank()))
    until(lambda: all((folder / str(member)).exists() for member in members))
    handles = [(folder / str(member)).read_text() for member in members]
    dist._reconfigure(uuid, handles, timeout=timedelta(seconds=30)).wait()


def reduced() -> torch.Tensor:
    """All calls come from one line, whatever the members."""
    total = torch.ones(2)
    dist.all_reduce(total)
    return total


capture = start_capture()
dist.init_process_group(
    "gloo",
    init_method=f"file://{os.environ[STORE]}",
    rank=rank(),
    world_size=world_size(),
    enable_reconfigure=True,
)
form(FIRST, [0, 1, 2])
for _ in range(5):
    reduced()
if rank() != 1:
    form(SECOND, [2, 0])
    total = reduced()
    dist.broadcast(total, group_src=0)
    say(rank=dist.get_rank(), total=float(total[0]))
os._exit(0) if rank() == 1 else capture.uninstall()
