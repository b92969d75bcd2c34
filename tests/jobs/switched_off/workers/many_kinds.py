"""Calls of all kinds from several threads, while rank 0 switches recording off and on again and again."""

import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from tests.support.ranks.json_lines import say

LASTS_S = 14.0
FLIPS_S = 1.6
"""Longer than a rank takes to look for the file."""


def flip(off: Path, is_over: threading.Event) -> None:
    """Create and remove the file."""
    while not is_over.wait(FLIPS_S):
        if off.exists():
            off.unlink()
        else:
            off.touch()
    off.unlink(missing_ok=True)


def reduce_in_background(group: dist.ProcessGroup, counts: list[int]) -> None:
    """Issue collectives of a group of this thread until the ranks agree to stop."""
    goes_on = torch.ones(1)
    while goes_on.item() > 0:
        goes_on = torch.tensor([float(counts[0] == 0)])
        dist.all_reduce(goes_on, dist.ReduceOp.MIN, group=group)
        counts[1] += 1


def main() -> None:
    """Issue calls."""
    off = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(list(range(world_size)))  # of one thread: backends pair calls in their order
    counts = [0, 0]
    thread = threading.Thread(target=reduce_in_background, args=(group, counts), daemon=True)
    thread.start()
    is_over = threading.Event()
    flipper = threading.Thread(target=flip, args=(off, is_over), daemon=True)
    if rank == 0:
        flipper.start()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(32, 16)), batch_size=8)
    until, steps = time.monotonic() + LASTS_S, 0
    goes_on = True
    while goes_on:
        for (batch,) in loader:
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
        works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(4)]
        received = torch.zeros(4)
        neighbor = (rank + 1) % world_size
        operations = [
            dist.P2POp(dist.isend, torch.full((4,), float(rank)), neighbor),
            dist.P2POp(dist.irecv, received, neighbor),
        ]
        for work in [*works, *dist.batch_isend_irecv(operations)]:
            work.wait()
        assert received.tolist() == [float(neighbor)] * 4
        total = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
        assert total.tolist() == [float(world_size)] * 4
        flag = torch.tensor([float(time.monotonic() < until)])
        dist.all_reduce(flag, dist.ReduceOp.MIN)
        goes_on = bool(flag.item())
        if steps % 64 == 0:
            short_lived = dist.new_group(list(range(world_size)))
            dist.barrier(short_lived)  # gloo fails in a rank that still connects while another destroys the group
            dist.destroy_process_group(short_lived)
    counts[0] = 1
    thread.join()
    is_over.set()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    say(rank=rank, steps=steps, finite=bool(weights.isfinite().all()), others=counts[1])
    if rank == 0:
        flipper.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
