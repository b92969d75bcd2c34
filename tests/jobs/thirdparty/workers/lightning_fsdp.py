"""A training with Lightning's Fabric and the second generation of FSDP.

Its FSDP strategy refuses CPUs; the one for model parallelism takes them.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from tests.jobs.thirdparty.issued import counted, digest, exactly, report

STEPS = 4


def loader() -> DataLoader[Any]:
    """Eight batches, four for each rank."""
    generator = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(32, 8, generator=generator), torch.randint(4, (32,), generator=generator))
    return DataLoader(data, batch_size=4)


def sharded(net: torch.nn.Module, mesh: Any) -> torch.nn.Module:
    """Shard each layer."""
    for layer in net.children():
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh["data_parallel"])
    return fully_shard(net, mesh=mesh["data_parallel"])


def main(folder: str) -> list[str]:
    """Four batches, each of which is a step; and a checkpoint."""
    strategy = ModelParallelStrategy(sharded, data_parallel_size=2, tensor_parallel_size=1)
    fabric = Fabric(accelerator="cpu", strategy=strategy, devices=2)
    fabric.launch()
    fabric.seed_everything(9, verbose=False)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    model = fabric.setup(net)
    optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))
    losses: list[str] = []
    for inputs, labels in fabric.setup_dataloaders(loader()):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(exactly(fabric.all_reduce(loss.detach())))
    fabric.save(os.path.join(folder, "shards.ckpt"), {"model": model, "optimizer": optimizer})
    return [*losses, digest(model.parameters())]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with counted() as issued:
        losses = main(sys.argv[1])
    # To save an optimizer without state torch lets it step once, with a learning rate of 0.
    report(issued, losses=losses, steps=STEPS + 1)
    torch.distributed.destroy_process_group()
