"""A training that goes on until a test has made a file; at its end each rank reports how many collectives it issued."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.support.ranks.json_lines import say


def main() -> None:
    """Train."""
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(512, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    goes_on = True
    while goes_on:
        model(torch.randn(4, 512)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        goes_on = not (rank == 0 and (folder / "finish").exists())
        flag = torch.tensor(float(goes_on))
        dist.all_reduce(flag, dist.ReduceOp.MIN)
        goes_on = bool(flag)
        time.sleep(0.01)
    counted_by_gloo = dist.distributed_c10d._get_default_group()._get_sequence_number_for_group()
    say(rank=rank, issued=counted_by_gloo)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
