"""Training runs with Lightning: the Trainer and Fabric, both with DDP."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from typing import Any

import lightning
import torch
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from tests.jobs.thirdparty.issued import counted, digest, exactly, report


def loader() -> DataLoader[Any]:
    """Eight batches, four for each rank."""
    generator = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(32, 8, generator=generator), torch.randint(4, (32,), generator=generator))
    return DataLoader(data, batch_size=4)


class Net(lightning.LightningModule):
    """Two layers, with metrics that are reduced over ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
        self.losses: list[str] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        """A batch."""
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        self.losses.append(exactly(loss))
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        """A batch."""
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("val_loss", loss, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Create the Adam optimizer."""
        return torch.optim.Adam(self.parameters(), lr=0.01)


def with_trainer(folder: str) -> list[str]:
    """Two epochs of four batches, each followed by a validation and a checkpoint: eight steps."""
    lightning.seed_everything(9, verbose=False)
    model = Net()
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        callbacks=[ModelCheckpoint(folder, monitor="val_loss")],
    )
    trainer.fit(model, loader(), loader())
    return [*model.losses, digest(model.parameters())]


def with_fabric(folder: str) -> list[str]:
    """Four batches, two of which make a step; and a checkpoint."""
    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=2)
    fabric.launch()
    fabric.seed_everything(9, verbose=False)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    losses: list[str] = []
    for number, (inputs, labels) in enumerate(fabric.setup_dataloaders(loader())):
        accumulates = number % 2 == 0
        with fabric.no_backward_sync(model, enabled=accumulates):
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            fabric.backward(loss)
        if not accumulates:
            optimizer.step()
            optimizer.zero_grad()
            losses.append(exactly(fabric.all_reduce(loss.detach())))
    fabric.save(os.path.join(folder, "fabric.ckpt"), {"model": model, "optimizer": optimizer})
    fabric.barrier()
    return [*losses, digest(model.parameters())]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with counted() as issued:
        losses = with_trainer(sys.argv[1])
        gc.collect()  # or its optimizer would be the one whose steps count
        losses += with_fabric(sys.argv[1])
    report(issued, losses=losses, steps=10)
    torch.distributed.destroy_process_group()
