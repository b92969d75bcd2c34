"""A training script whose rank 1 evaluates alone at one step, which takes until the job is ended."""

import time

import torch
import torch.distributed as dist

STEPS = 200
EVALUATED = 20


def evaluate() -> None:
    """Take longer than anybody waits."""
    time.sleep(600)


dist.init_process_group("gloo")
for step in range(STEPS):
    if step == EVALUATED and dist.get_rank() == 1:
        evaluate()
    dist.all_reduce(torch.ones(4))
    time.sleep(0.01)
