"""Trains 12 steps; in the first attempt rank 1 hangs at the eighth, and rank 0 takes some seconds to save.

`rescued.py ddp|fsdp DIRECTORY [asleep [SECONDS]]`
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from otel_torchdist import StalledRank, rescue

STEPS, HANGS_AT = 12, 7


def save(stalled: StalledRank) -> int:
    """Save this rank's part, as `OTEL_PYTHON_TORCHDIST_ON_STALL=rescue:__main__:save` calls it."""
    assert stalled.verdict == "absent" and stalled.ranks == "1", stalled
    time.sleep(float(sys.argv[4]) * (rank == 0) if len(sys.argv) > 4 else 0)
    copied = shards.copy()
    rescue.save(copied, stalled, directory, step=copied["steps"])
    return copied["steps"]


kind, directory = sys.argv[1], Path(sys.argv[2])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
if kind == "fsdp":
    mesh = init_device_mesh("cpu", (size,))
    fully_shard(model[0], mesh=mesh)
    model = fully_shard(model, mesh=mesh)
else:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
shards = rescue.LocalShards(model, optimizer)
found = rescue.latest(directory, rank, size)
if found is not None:
    shards.load(torch.load(found))
print(f"begins at step {shards.steps}\n", end="", flush=True)  # in one piece: both ranks write to the same file
for step in range(shards.steps, STEPS):
    batch = torch.randn(8, 16, generator=torch.Generator().manual_seed(100 * step + rank))
    # Not by TORCHELASTIC_RESTART_COUNT: a node that restarts because the other one has done so does not count that.
    if len(sys.argv) > 3 and found is None and (rank, step) == (1, HANGS_AT):
        time.sleep(600)
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
weights = {name: value.numpy().tobytes().hex() for name, value in shards.copy()["tensors"].items()}
print(f"ends with {hash(tuple(sorted(weights.items()))):x}\n", end="", flush=True)
dist.destroy_process_group()
