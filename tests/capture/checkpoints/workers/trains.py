"""A rank of an ordinary job: DDP, a loader whose batches are waited for, an optimizer, and a few remote calls.

With argument `saves` it also saves as jobs do, all ranks together and rank 0 alone, and reads one file.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed import rpc
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from tests.support.ranks import rpc_worker
from tests.support.ranks.rank import join, rank, say, start_capture, world_size

warnings.simplefilter("ignore")
STEPS = 12
SAVED_EVERY = 4
WIDTH = 256


class Slow(Dataset[torch.Tensor]):
    """Samples that take a while."""

    def __len__(self) -> int:
        """As many as are used."""
        return STEPS

    def __getitem__(self, place: int) -> torch.Tensor:
        """Load one."""
        time.sleep(0.005)
        return torch.full((WIDTH,), float(place))


def evaluated(batch: torch.Tensor) -> torch.Tensor:
    """Evaluate a batch on another worker."""
    return batch.square()


def train(saves: bool) -> None:
    """Take the steps."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    folder: list[Any] = [tempfile.mkdtemp(dir=os.environ["TAPES"]) if rank() == 0 else None]
    dist.broadcast_object_list(folder)
    base = Path(folder[0])
    for step, batch in enumerate(DataLoader(Slow())):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        rpc.rpc_sync(f"worker{(rank() + 1) % world_size()}", evaluated, args=(batch,))
        if saves and (step + 1) % SAVED_EVERY == 0:
            dcp.save(model.state_dict(), checkpoint_id=base / f"step-{step}")
            if rank() == 0:
                torch.save(model.state_dict(), base / "newest.pt")
    if saves and rank() == 0:
        torch.load(base / "newest.pt")


def main() -> None:
    """Run the job."""
    capture = start_capture()
    join(suffix="-group")
    rpc_worker.join(rank(), world_size())
    train(sys.argv[1] == "saves")
    rpc.shutdown()
    say(steps=STEPS)
    dist.destroy_process_group()
    capture.uninstall()


main()
