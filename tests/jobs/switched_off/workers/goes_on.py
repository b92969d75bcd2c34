"""A training of a fixed number of steps, which a test interrupts by files; at its end each rank reports its weights."""

import hashlib
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.support.ranks.json_lines import say

STEPS = 200
LAST = 50
"""Steps that are left when the test lets the training end."""


HANGS_S = 5.0


def wait_here(seconds: float) -> None:
    """Hold the others up."""
    time.sleep(seconds)


def communicate_until_told(folder: Path, rank: int) -> None:
    """Issue collectives until the test has made `finish`. For each `hang`, rank 0 comes late to a collective, once."""
    goes_on = True
    while goes_on:
        for hang in folder.glob("hang*") if rank == 0 else ():
            wait_here(HANGS_S)
            hang.rename(folder / hang.name.replace("hang", "hung"))
        flag = torch.tensor(float(rank == 0 and not (folder / "finish").exists()))
        dist.all_reduce(flag)
        goes_on = bool(flag)
        time.sleep(0.01)


def main() -> None:
    """Train."""
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(STEPS):
        if step == STEPS - LAST:
            communicate_until_told(folder, rank)
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    say(rank=rank, weights=hashlib.sha256(weights + bytes(torch.get_rng_state())).hexdigest())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
