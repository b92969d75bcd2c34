"""Two ranks that train over NCCL, on one device if there is no second; the argument is what goes wrong in step 10."""

import hashlib
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.gpu.one_device import choose_device

STEPS, FAULTY = 15, 10
TOO_LONG_S = 8.0
CYCLES_PER_S = 1.9e9


def replicate(device: torch.device, rank: int, fault: str) -> list[torch.Tensor]:
    """Some steps with DDP; returns what they result in."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    replicas = DistributedDataParallel(model, device_ids=[device.index])
    optimizer = torch.optim.AdamW(replicas.parameters(), lr=1e-3)
    inputs = torch.randn(STEPS, 64, 256, generator=torch.Generator().manual_seed(rank)).to(device)
    losses: list[torch.Tensor] = []
    for step in range(STEPS):
        if step == FAULTY:
            go_wrong(fault, device, rank)
        optimizer.zero_grad()
        loss = replicas(inputs[step]).square().mean()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        torch.cuda.synchronize()
        losses.append(mean)
    return [*losses, *model.parameters()]


def go_wrong(fault: str, device: torch.device, rank: int) -> None:
    """Do what the fault is, if it is this rank's."""
    if rank != 1:
        return
    if fault == "absent":
        time.sleep(TOO_LONG_S)
    elif fault == "device":
        torch.cuda._sleep(int(TOO_LONG_S * CYCLES_PER_S))
    elif fault == "dead":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "mismatched":
        dist.all_gather_into_tensor(torch.empty(8, device=device), torch.ones(4, device=device))


def shard(device: torch.device, rank: int) -> list[torch.Tensor]:
    """Some steps with FSDP; returns what they result in."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(5, 64, 256, generator=torch.Generator().manual_seed(rank)).to(device)
    for batch in inputs:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.to_local() for parameter in model.parameters()]


def call_others(device: torch.device, rank: int) -> list[torch.Tensor]:
    """Operations that neither of them calls; returns their results."""
    world = dist.group.WORLD
    assert world is not None
    mine = torch.full((1000,), float(rank), device=device)
    added = functional.wait_tensor(functional.all_reduce(mine, "sum", world))
    gathered = functional.wait_tensor(functional.all_gather_tensor(mine, 0, world))
    received = [torch.empty(7, device=device) for _ in range(2)]
    if rank == 0:
        dist.send(mine[:7], 1)
    else:
        dist.recv(received[0], 0)
    both = [dist.P2POp(dist.isend, mine[:7], 1 - rank), dist.P2POp(dist.irecv, received[1], 1 - rank)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return [added, gathered, received[1]]


def main() -> None:
    """Print a digest of all results, and how many collectives NCCL has counted in the trainings."""
    rank = int(os.environ["RANK"])
    device = choose_device(rank)
    dist.init_process_group("nccl", device_id=device)
    torch.use_deterministic_algorithms(True)
    results = [*replicate(device, rank, sys.argv[1]), *shard(device, rank)]
    counted = dist.distributed_c10d._get_default_group()._get_sequence_number_for_group()
    results += call_others(device, rank)
    digest = hashlib.sha256(b"".join(result.detach().cpu().numpy().tobytes() for result in results)).hexdigest()
    print(f"rank {rank} digest {digest[:16]} counted {counted}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
