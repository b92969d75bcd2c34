"""Trains with Accelerate on two processes: `accelerate launch --multi_gpu --num_processes 2 train.py`."""

import argparse
import time

import torch
from accelerate import Accelerator


def load_batch(step: int, late_s: float) -> torch.Tensor:
    """Return a batch, `late_s` too late in step 3."""
    if step == 3:
        time.sleep(late_s)
    return torch.full((4, 8), float(step))


def main() -> None:
    """Train for a few steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--late-rank", type=int, default=-1, help="rank that loads a batch too late")
    parser.add_argument("--late-s", type=float, default=30.0, help="by how many seconds")
    parser.add_argument("--failing-rank", type=int, default=-1, help="rank that raises an error in step 3")
    options = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    model = torch.nn.Linear(8, 4)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.001))
    loss = torch.zeros(())
    for step in range(options.steps):
        batch = load_batch(step, options.late_s if rank == options.late_rank else 0.0)
        if step == 3 and rank == options.failing_rank:
            raise ValueError(f"rank {rank} has a bad batch")
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    losses = torch.as_tensor(accelerator.gather(loss.detach().reshape(1)))
    accelerator.print(f"loss {losses.mean().item():.4f} on {accelerator.num_processes} ranks", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
