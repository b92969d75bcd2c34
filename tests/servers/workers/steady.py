"""A number of steps with two all_reduce each, at a steady pace."""

import sys
import time

import torch
import torch.distributed as dist


def main(steps: int, pause_s: float) -> None:
    """Run the steps, without a model."""
    dist.init_process_group("gloo")
    parameter = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for _ in range(steps):
        time.sleep(pause_s)
        dist.all_reduce(torch.ones(4))
        dist.all_reduce(torch.ones(1_000))
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
