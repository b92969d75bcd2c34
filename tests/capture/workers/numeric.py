"""Trains in one of several ways while values are looked at; one rank brings a NaN in one step: `numeric.py KIND RANK`.

`twice` trains bare and then recorded, and says whether both arrive at the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from otel_torchdist.capture.observers.choice import Observing
from otel_torchdist.capture.observers.numerics import NumericsObserver
from otel_torchdist.config import NumericsMode
from tests.capture.workers.hooked import trained
from tests.support.rank import join, rank, say, start_capture, world_size

WIDTH = 12
STEPS, BAD_STEP = 6, 3


def layers() -> nn.Sequential:
    """Three layers."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def batch(is_bad: bool, seed: int) -> torch.Tensor:
    """A batch; a bad one has a NaN in it."""
    values = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(seed))
    if is_bad:
        values[2, 5] = float("nan")
    return values


def data_parallel(model: Any) -> Callable[[int, bool], None]:
    """Each rank has batches of its own."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(nth: int, is_bad: bool) -> None:
        optimizer.zero_grad()
        (model(batch(is_bad, 10 * nth + rank())) ** 2).mean().backward()
        optimizer.step()

    return step


def ddp() -> Callable[[int, bool], None]:
    """Gradients are reduced by C++."""
    return data_parallel(DistributedDataParallel(layers()))


def fsdp() -> Callable[[int, bool], None]:
    """Gradients are scattered."""
    model = layers()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    return data_parallel(model)


def tensor_parallel() -> Callable[[int, bool], None]:
    """All ranks have the same batch, and each a part of the weights; a part becomes bad."""
    mesh = init_device_mesh("cpu", (world_size(),))
    torch.manual_seed(0)
    model = parallelize_module(layers(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(nth: int, is_bad: bool) -> None:
        optimizer.zero_grad()
        if is_bad:
            weight: Any = model[0].weight
            with torch.no_grad():
                weight.to_local()[0, 0] = float("nan")
        (model(batch(False, nth)) ** 2).mean().backward()
        optimizer.step()

    return step


def pipeline() -> Callable[[int, bool], None]:
    """Each rank sends what it has computed to the next one, and gradients come back."""
    layer = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)

    def step(nth: int, is_bad: bool) -> None:
        optimizer.zero_grad()
        received = batch(False, nth)
        if rank() > 0:
            dist.recv(received, rank() - 1)
        received.requires_grad_()
        result = torch.tanh(layer(received))
        if is_bad:
            result = result * float("nan")
        gradient = torch.ones_like(result)
        if rank() < world_size() - 1:
            dist.send(result.detach(), rank() + 1)
            dist.recv(gradient, rank() + 1)
        result.backward(gradient)
        if rank() > 0 and received.grad is not None:
            dist.send(received.grad, rank() - 1)
        optimizer.step()

    return step


KINDS = {one.__name__: one for one in (ddp, fsdp, tensor_parallel, pipeline)}


def main() -> None:
    """Train."""
    kind, bad_rank = sys.argv[1], int(sys.argv[2])
    observing = Observing(numerics=NumericsObserver(NumericsMode.ALL, 1))
    if kind == "twice":
        join()
        bare = trained()
        start_capture(observing=observing)
        say(same=trained() == bare)
    else:
        start_capture(observing=observing)
        join()
        step = KINDS[kind]()
        for nth in range(STEPS):
            step(nth, nth == BAD_STEP and rank() == bad_rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
