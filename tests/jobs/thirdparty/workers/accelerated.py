"""A training with Accelerate: accumulated gradients, an evaluation, a checkpoint, logging by one rank."""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object, set_seed
from torch.utils.data import DataLoader, TensorDataset

from tests.jobs.thirdparty.issued import counted, digest, exactly, report


def train(accelerator: Accelerator) -> list[str]:
    """Two epochs of four batches, two of which make a step."""
    data = TensorDataset(torch.randn(32, 8), torch.randint(4, (32,)))
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = DataLoader(data, batch_size=4, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    losses: list[str] = []
    for epoch in range(2):
        for inputs, labels in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        losses.append(exactly(accelerator.gather_for_metrics(loss.detach()).mean()))
        if accelerator.is_main_process:
            print("epoch", epoch, losses[-1])
        accelerator.wait_for_everyone()
    accelerator.save_state(sys.argv[1])
    accelerator.wait_for_everyone()
    accelerator.load_state(sys.argv[1])
    said = broadcast_object_list([accelerator.process_index, "said by one"])
    assert len(gather_object([said])) == 2
    losses.append(digest(model.parameters()))
    return losses


if __name__ == "__main__":
    set_seed(5)
    with counted() as issued:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        losses = train(accelerator)
    report(issued, losses=losses, steps=4)
    accelerator.end_training()
