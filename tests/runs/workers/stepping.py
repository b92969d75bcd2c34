"""Steps of a small model, whose gradients are reduced over a group of all ranks.

Arguments: the number of steps, and milliseconds that each rank computes before it reduces.
"""

import random
import sys
import time

import torch
import torch.distributed as dist

steps, compute_ms = int(sys.argv[1]), float(sys.argv[2])
dist.init_process_group("gloo")
group = dist.new_group(group_desc="replicas")
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
jitter = random.Random(dist.get_rank())
for _ in range(steps):
    loss = model(torch.ones(8, 64)).square().mean()
    loss.backward()
    time.sleep((compute_ms + jitter.random()) / 1000)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
