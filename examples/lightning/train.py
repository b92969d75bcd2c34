"""Trains with Lightning, which starts the ranks itself: `python train.py`.

Lightning's strategy decides how: `ddp` runs this file again for each further rank, `ddp_spawn`, `ddp_fork` and
`ddp_notebook` use multiprocessing.
"""

import argparse
import time

import lightning
import torch
from torch.utils.data import DataLoader, Dataset


class Batches(Dataset[torch.Tensor]):
    """A data set with a fixed number of batches for each rank."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index % 4))


class Model(lightning.LightningModule):
    """A linear model. One rank may prepare a batch too late, or fail."""

    def __init__(self, late_rank: int, late_s: float, failing_rank: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)
        self.late_rank, self.late_s, self.failing_rank = late_rank, late_s, failing_rank

    def prepare_batch(self, batch: torch.Tensor, step: int) -> torch.Tensor:
        """Return a batch, too late in step 3 if this is the late rank."""
        if step == 3 and self.global_rank == self.late_rank:
            time.sleep(self.late_s)
        return batch

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        """Return the loss of a batch."""
        batch = self.prepare_batch(batch, batch_idx)
        if batch_idx == 3 and self.global_rank == self.failing_rank:
            raise ValueError(f"rank {self.global_rank} has a bad batch")
        return self.layer(batch).square().mean()

    def on_train_end(self) -> None:
        """Report the end, in the rank: the trainer of this file's own process knows it only if it is a rank."""
        if self.global_rank == 0:
            print(f"trained for {self.trainer.global_step} steps on {self.trainer.world_size} ranks", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    """Train for one epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="ddp", help="ddp, ddp_spawn, ddp_fork or ddp_notebook")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--late-rank", type=int, default=-1, help="rank that prepares a batch too late")
    parser.add_argument("--late-s", type=float, default=30.0, help="by how many seconds")
    parser.add_argument("--failing-rank", type=int, default=-1, help="rank that raises an error in step 3")
    options = parser.parse_args()

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=options.strategy,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    batches = DataLoader(Batches(2 * 4 * options.steps), batch_size=4)
    trainer.fit(Model(options.late_rank, options.late_s, options.failing_rank), batches)


if __name__ == "__main__":
    main()
