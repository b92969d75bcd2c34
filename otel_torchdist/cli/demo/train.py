"""Trains a small network on scikit-learn's handwritten digits with DistributedDataParallel, under torchrun.

An ordinary training script that knows nothing of OpenTelemetry, except that a fault is staged on one rank somewhere in
the middle of the run. By default, its storage does not answer for a while.
"""

# pyright: basic
# The stubs of torch and scikit-learn leave many types unknown; annotating them would make this script unusual.

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BATCH = 16
"""Images per rank in each step."""
HELD_OUT = 360
"""Images held out for the final evaluation."""


class Digits(Dataset[tuple[Tensor, Tensor]]):
    """Images of 8x8 pixels and their labels, read one at a time from a storage that may block or be damaged."""

    def __init__(
        self, images: Tensor, labels: Tensor, slow_read: int | None, block_s: float, bad_read: int | None
    ) -> None:
        """Make the `slow_read`-th read, counted from 1, take `block_s` seconds, and the `bad_read`-th return a NaN."""
        self._images = images
        self._labels = labels
        self._slow_read = slow_read
        self._block_s = block_s
        self._bad_read = bad_read
        self._reads = 0

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self._reads += 1
        if self._reads == self._slow_read:
            time.sleep(self._block_s)
        if self._reads == self._bad_read:
            return self._images[index] * math.nan, self._labels[index]
        return self._images[index], self._labels[index]


def kill(is_faulty: bool, seconds: float) -> None:
    """Kill the faulty rank, as the kernel does when memory runs out."""
    if is_faulty:
        os.kill(os.getpid(), signal.SIGKILL)


def freeze(is_faulty: bool, seconds: float) -> None:
    """Stop the faulty rank; a child process resumes it after `seconds`."""
    if is_faulty:
        subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT $PPID"])
        os.kill(os.getpid(), signal.SIGSTOP)


def mismatch(is_faulty: bool, seconds: float) -> None:
    """Sum a tensor of ten elements on all ranks, but of nine on the faulty rank."""
    dist.all_reduce(torch.zeros(9 if is_faulty else 10))


def circular(is_faulty: bool, seconds: float) -> None:
    """Sum a tensor in pairs of neighboring ranks; each rank begins with the pair that it forms with the next rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([first, (first + 1) % size], group_desc=f"pair_{first}") for first in range(size)]
    for pair in (pairs[rank], pairs[rank - 1]):
        dist.all_reduce(torch.zeros(1), group=pair)  # pyright: ignore[reportArgumentType]  # members get a group


def bitflip(is_faulty: bool, seconds: float) -> None:
    """Sum a tensor on all ranks; on the faulty rank, a bit of the result flips before it is read."""
    total = torch.ones(1_000)
    work = dist.all_reduce(total, async_op=True)
    if is_faulty:
        time.sleep(0.5)
        total.view(torch.int32)[500] ^= 1 << 20
    if work is not None:
        work.wait()


def save_checkpoint(network: nn.Module, is_faulty: bool, seconds: float) -> None:
    """Save the network, each rank its share; the storage of the faulty rank does not answer for `seconds`."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter  # takes half a second; other faults skip it
    from torch.distributed.checkpoint.state_dict_saver import save

    class Storage(FileSystemWriter):
        def write_data(self, plan, planner):
            if is_faulty:
                time.sleep(seconds)
            return super().write_data(plan, planner)

    with tempfile.TemporaryDirectory(prefix="digits-") as folder:
        shared = [folder]
        dist.broadcast_object_list(shared)
        save({"network": network.state_dict()}, storage_writer=Storage(shared[0]))


BETWEEN_STEPS: dict[str, Callable[[bool, float], None]] = {
    "kill": kill,
    "freeze": freeze,
    "mismatch": mismatch,
    "circular": circular,
    "bitflip": bitflip,
}
"""Faults between two steps, called by all ranks."""


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", choices=["late", "nan", "checkpoint", *BETWEEN_STEPS], default="late")
    parser.add_argument("--faulty-rank", type=int, default=2)
    parser.add_argument("--block-seconds", type=float, default=20.0, help="duration of a temporary fault")
    return parser.parse_args()


def read_digits() -> tuple[Tensor, Tensor]:
    """Return all images, shape (1797, 1, 8, 8), values from 0 to 1, and labels, shape (1797,), in random order."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    order = torch.randperm(len(images))
    return images[order], torch.tensor(labels)[order]


def build_network() -> nn.Module:
    """Build two convolutions and two linear layers: 144,000 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(),
        nn.Conv2d(24, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(48 * 16, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def endless_batches(dataset: Digits, seed: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield this rank's batches, each with its epoch."""
    sampler = DistributedSampler(dataset, seed=seed)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    for epoch in itertools.count(1):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            yield epoch, images, labels


def train(network: nn.Module, dataset: Digits, steps: int, seed: int, before_step: Callable[[int], None]) -> None:
    """Take `steps` steps of SGD, and print the loss at the beginning of each epoch."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    last_epoch = 0
    for step, (epoch, images, labels) in enumerate(itertools.islice(endless_batches(dataset, seed), steps)):
        before_step(step)
        optimizer.zero_grad()
        loss = loss_of(network(images), labels)
        loss.backward()
        optimizer.step()
        if epoch > last_epoch and dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
        last_epoch = epoch


def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of images classified correctly."""
    with torch.no_grad():
        guesses = network(images).argmax(dim=1)
    return (guesses == labels).float().mean().item()


def main() -> None:
    """Train on all ranks, and print the accuracy on held-out images."""
    arguments = parse_arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(arguments.seed)
    images, labels = read_digits()
    faulty_step = random.Random(arguments.seed).randrange(arguments.steps // 3, arguments.steps * 2 // 3)
    is_faulty = dist.get_rank() == arguments.faulty_rank
    faulty_read = faulty_step * BATCH if is_faulty else None
    slow_read = faulty_read if arguments.fault == "late" else None
    bad_read = faulty_read if arguments.fault == "nan" else None

    def inject_fault(step: int) -> None:
        if step == faulty_step and arguments.fault in BETWEEN_STEPS:
            BETWEEN_STEPS[arguments.fault](is_faulty, arguments.block_seconds)
        elif step == faulty_step and arguments.fault == "checkpoint":
            save_checkpoint(network, is_faulty, arguments.block_seconds)

    network = DistributedDataParallel(build_network())
    digits = Digits(images[HELD_OUT:], labels[HELD_OUT:], slow_read, arguments.block_seconds, bad_read)
    train(network, digits, arguments.steps, arguments.seed, inject_fault)
    if dist.get_rank() == 0:
        share = accuracy(network.module, images[:HELD_OUT], labels[:HELD_OUT])
        print(f"accuracy on {HELD_OUT} held-out images: {share:.1%}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
