"""What a notebook's cells import: a training function, so that processes started by `spawn` can import it too."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.jobs.thirdparty.issued import REPORTS, counted, digest, exactly, report

STEPS = 3


@contextmanager
def counted_before() -> Iterator[Counter[str]]:
    """Restore the counts of the first launch: in a new process the profiler takes seconds to import."""
    first = Path(os.environ[REPORTS], f"{os.environ['RANK']}-0.json")
    yield Counter(json.loads(first.read_text())["issued"])


def train(launch: int) -> None:
    """Train on any number of ranks; the default group exists."""
    with counted_before() if launch else counted() as issued:
        torch.manual_seed(6)
        model = DistributedDataParallel(torch.nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses: list[str] = []
        for step in range(STEPS):
            loss = model(torch.full((4, 8), float(step + dist.get_rank()))).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(exactly(loss))
        dist.barrier()
    report(issued, launch, losses=[*losses, digest(model.parameters())], steps=STEPS)


def started(rank: int, launch: int, store: str) -> None:
    """A process that torch has started for a rank."""
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    train(launch)
    dist.destroy_process_group()
