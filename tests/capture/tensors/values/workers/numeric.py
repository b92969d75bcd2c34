"""Trains in one of several ways while values are looked at; one rank brings a NaN in one step: `numeric.py KIND RANK`.

`numeric.py KIND RANK RANK …`: only the ranks behind the first look at their values.

`twice` trains bare and then recorded, and says whether both arrive at the same.
"""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from otel_torchdist.capture.tensors.choice import Observers
from otel_torchdist.capture.tensors.numerics import NumericsObserver
from otel_torchdist.config import NumericsMode
from tests.capture.tensors.workers.hooked import trained
from tests.support.ranks.rank import join, leave, rank, say, start_capture, world_size

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


class WaitsInStep(torch.optim.SGD):
    """An optimizer that waits for its gradients in its step."""

    works: ClassVar[list[Any]] = []

    def step(self, closure: Any = None) -> None:
        """Wait, and step."""
        while self.works:
            self.works.pop().wait()
        super().step(closure)


def waits_late() -> Callable[[int, bool], None]:
    """Start reductions in the backward pass and wait for them in the optimizer's step."""
    model = layers()
    optimizer = WaitsInStep(model.parameters(), lr=0.01)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda one: optimizer.works.append(dist.all_reduce(one.grad, async_op=True))
        )

    def step(nth: int, is_bad: bool) -> None:
        optimizer.zero_grad()
        time.sleep(0.05 * (nth == 1) * rank())
        (model(batch(is_bad, 10 * nth + rank())) ** 2).mean().backward()
        optimizer.step()

    return step


def on_purpose() -> Callable[[int, bool], None]:
    """Send legitimate non-finite or differing values, and unusual types and layouts: no finding is expected."""
    size, own = world_size(), rank()

    def step(nth: int, is_bad: bool) -> None:
        mask = torch.full((9,), float("nan") if own else float("inf"))
        dist.all_reduce(mask.clone(), dist.ReduceOp.MIN)
        dist.all_reduce(torch.full((3,), -float("inf")), dist.ReduceOp.MAX)
        dist.broadcast(torch.zeros(5) if own == 0 else mask[:5].clone(), 0)  # what others give is overwritten
        dist.scatter(torch.empty(4), [torch.zeros(4)] * size if own == 0 else None, 0)
        if own == 0:
            dist.send(torch.ones(3), 1)
        elif own == 1:
            dist.recv(torch.full((3,), float("nan")), 0)
        dist.reduce(torch.ones(3) * own, 0)  # only the root's result means something
        dist.reduce_scatter(torch.empty(2), [torch.ones(2) * own] * size)
        with contextlib.suppress(RuntimeError):  # gloo has it since torch 2.9
            dist.all_to_all(list(torch.empty(size, 2)), list(torch.ones(size, 2) * own))
        dist.all_reduce(torch.ones(3, 4).t())
        dist.all_reduce(torch.ones(3, 4, dtype=torch.complex64) * (own + 1))
        dist.all_reduce(torch.tensor([own, 7]))
        dist.all_reduce(torch.empty(0))
        dist.all_gather([torch.empty(2) for _ in range(size)], torch.ones(2) * own)
        dist.all_gather_object([None] * size, {"rank": own, "text": "x" * own})
        gathered = [torch.empty(2) for _ in range(size)]
        work: Any = dist.all_gather(gathered, torch.ones(2) * own, async_op=True)
        del gathered[own]  # C++ still has it
        work.wait()
        with torch.inference_mode():
            dist.all_reduce(torch.ones(3))
        for odd in odd_tensors():
            with contextlib.suppress(RuntimeError, ValueError):  # as without us
                dist.all_reduce(odd)

    return step


def odd_tensors() -> list[torch.Tensor]:
    """Tensors that gloo refuses, or takes as bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            torch.ones(4).to(torch.float8_e4m3fn),
            torch.eye(3).to_sparse(),
            torch.ones(3, device="meta"),
            torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
            torch.ones(8)[::2],
            torch.ones(3, dtype=torch.complex64).conj(),
        ]


def large() -> Callable[[int, bool], None]:
    """Broadcast more than a megabyte. Few of these messages are sampled."""

    def step(nth: int, is_bad: bool) -> None:
        for _ in range(8):
            dist.broadcast(torch.ones(2 << 18) * rank(), 1)  # 2 MiB

    return step


KINDS = {one.__name__: one for one in (ddp, fsdp, tensor_parallel, pipeline, waits_late, on_purpose, large)}


def main() -> None:
    """Train."""
    kind, bad_rank = sys.argv[1], int(sys.argv[2])
    every = 2 if kind == "large" else 1
    ranks = tuple(range(int(one), int(one) + 1) for one in sys.argv[3:])
    observers = Observers(numerics=NumericsObserver(NumericsMode.ALL, every, ranks))
    if kind == "twice":
        join()
        bare = trained()
        start_capture(observers=observers)
        say(same=trained() == bare)
    else:
        start_capture(observers=observers)
        join()
        step = KINDS[kind]()
        for nth in range(STEPS):
            step(nth, nth == BAD_STEP and rank() == bad_rank)
    leave()


if __name__ == "__main__":
    main()
