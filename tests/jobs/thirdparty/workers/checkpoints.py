"""A training with checkpoints that are written concurrently, by a thread or by a process."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint import _async_process_executor
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.fsdp import fully_shard

from deploy.native.ports import free_port
from tests.jobs.thirdparty.issued import counted, digest, exactly, report

STEPS = 6
EVERY = 2


def main(folder: Path, how: AsyncCheckpointerType) -> list[str]:
    """Train, with a checkpoint at every second step, and load the last one."""
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    process_group = dist.new_group(backend="gloo")
    losses: list[str] = []
    saving: Future[None] | None = None
    for step in range(STEPS):
        loss = model(torch.full((4, 8), float(step + dist.get_rank()))).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(exactly(loss))
        if step % EVERY == EVERY - 1:
            if saving is not None:
                saving.result()
            saving = checkpoint.async_save(
                {"model": model.state_dict()},
                checkpoint_id=folder / str(step),
                process_group=process_group,
                async_checkpointer_type=how,
            )
    assert saving is not None
    saving.result()
    state = {"model": model.state_dict()}
    checkpoint.load(state, checkpoint_id=folder / str(STEPS - 1))
    return [*losses, digest(model.parameters())]


if __name__ == "__main__":
    torch.set_num_threads(1)
    # The process that writes listens on it seconds later: meanwhile others get the system's ports.
    _async_process_executor.get_free_port = free_port
    dist.init_process_group("gloo")
    with counted() as issued:
        losses = main(Path(sys.argv[1]), AsyncCheckpointerType(sys.argv[2]))
    report(issued, losses=losses, steps=STEPS)
    dist.destroy_process_group()
