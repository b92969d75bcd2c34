"""What is copied while a program is ahead of its device is of the last step that the device has ended."""

from __future__ import annotations

from typing import Any

import torch

from otel_torchdist import rescue

DEVICE = torch.device("cuda", 0)
BUSY_CYCLES = 5_000_000_000


class Training:
    """A small model, with an optimizer that counts its steps on the host, and a learning rate that changes."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Linear(4, 4, device=DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.shards = rescue.LocalShards(self.model, self.optimizer)
        self._schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    def train(self, steps: range) -> None:
        """Train some steps, each on a batch of its own."""
        for step in steps:
            batch = torch.full((8, 4), float(step), device=DEVICE)
            self.optimizer.zero_grad()
            self.model(batch).square().sum().backward()
            self.optimizer.step()
            self._schedule.step()


def test_copy_while_steps_are_enqueued() -> None:
    """The counts and learning rates on the host are of that step too: training goes on from it to the same bits."""
    one = Training(seed=1)
    one.train(range(3))
    torch.cuda.synchronize()
    one.shards.copy()  # what CUDA loads with a first copy is not under test
    torch.cuda._sleep(BUSY_CYCLES)
    busy = torch.cuda.Event()
    busy.record()
    one.train(range(3, 5))
    copied: dict[str, Any] = one.shards.copy()
    assert not busy.query()
    assert (copied["steps"], copied["state"][0]["step"].item()) == (3, 3.0)
    other = Training(seed=2)
    other.shards.load(copied)
    other.train(range(3, 5))
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name]), name
