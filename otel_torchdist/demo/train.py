"""Trains a small network on scikit-learn's handwritten digits with DistributedDataParallel, under torchrun.

An ordinary training script, which knows nothing of OpenTelemetry. One thing in it is staged: somewhere in the middle
of the run, one rank's storage does not answer for a while.
"""

# pyright: basic
# Torch and scikit-learn leave so many types open that strict checks would make this no ordinary script.

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BATCH = 16
"""Images of a rank in each step."""
HELD_OUT = 360
"""Images that are kept for the end."""


class Digits(Dataset[tuple[Tensor, Tensor]]):
    """Images of 8x8 pixels and their labels, read one at a time from a storage that may block."""

    def __init__(self, images: Tensor, labels: Tensor, slow_read: int | None, block_s: float) -> None:
        """Let the `slow_read`-th read, counted from 1, take `block_s` seconds; None for no such read."""
        self._images = images
        self._labels = labels
        self._slow_read = slow_read
        self._block_s = block_s
        self._reads = 0

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self._reads += 1
        if self._reads == self._slow_read:
            time.sleep(self._block_s)
        return self._images[index], self._labels[index]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow-rank", type=int, default=2, help="the rank whose storage blocks once")
    parser.add_argument("--block-seconds", type=float, default=20.0)
    return parser.parse_args()


def read_digits() -> tuple[Tensor, Tensor]:
    """All images, shape (1797, 1, 8, 8), values from 0 to 1, and their labels, shape (1797,); in random order."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    order = torch.randperm(len(images))
    return images[order], torch.tensor(labels)[order]


def build_network() -> nn.Module:
    """Two convolutions and two linear layers: 144,000 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(),
        nn.Conv2d(24, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(48 * 16, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def endless_batches(dataset: Digits, seed: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """This rank's batches, each with its epoch."""
    sampler = DistributedSampler(dataset, seed=seed)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    for epoch in itertools.count(1):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            yield epoch, images, labels


def train(network: nn.Module, dataset: Digits, steps: int, seed: int) -> None:
    """Take `steps` steps of SGD, and tell the loss at the beginning of each epoch."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    told = 0
    for epoch, images, labels in itertools.islice(endless_batches(dataset, seed), steps):
        optimizer.zero_grad()
        loss = loss_of(network(images), labels)
        loss.backward()
        optimizer.step()
        if epoch > told and dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
        told = epoch


def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The share of images that are recognized."""
    with torch.no_grad():
        guesses = network(images).argmax(dim=1)
    return (guesses == labels).float().mean().item()


def main() -> None:
    """Train on all ranks, and tell how well the network does on images that it has not seen."""
    arguments = parse_arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(arguments.seed)
    images, labels = read_digits()
    slow_step = random.Random(arguments.seed).randrange(arguments.steps // 3, arguments.steps * 2 // 3)
    slow_read = slow_step * BATCH if dist.get_rank() == arguments.slow_rank else None

    network = DistributedDataParallel(build_network())
    digits = Digits(images[HELD_OUT:], labels[HELD_OUT:], slow_read, arguments.block_seconds)
    train(network, digits, arguments.steps, arguments.seed)
    if dist.get_rank() == 0:
        share = accuracy(network.module, images[:HELD_OUT], labels[:HELD_OUT])
        print(f"accuracy on {HELD_OUT} held-out images: {share:.1%}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
