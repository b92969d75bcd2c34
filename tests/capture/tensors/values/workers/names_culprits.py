"""Models of DDP and FSDP in which one parameter after the other gets a non-finite gradient. Reports which."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from otel_torchdist.capture.tensors.choice import Observers
from otel_torchdist.capture.tensors.numerics import NumericsObserver
from otel_torchdist.config import NumericsMode
from tests.support.ranks.rank import join, rank, say, start_capture

WIDTH = 300
SMALL_MB = 0.1
"""Less than a layer of 300 x 300 has, so that a model has two buckets."""
BAD_RANK = 1


class Poison(torch.autograd.Function):
    """Passes values through, and makes the last element of their gradient non-finite."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        """Pass the values through."""
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """Spoil the gradient."""
        spoilt = gradients[0].clone()
        spoilt.view(-1)[-1] = float("inf")
        return spoilt


class Layer(nn.Linear):
    """A layer one of whose parameters may have a bad gradient."""

    bad = ""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Pass the values through."""
        weight, bias = (Poison.apply(one) if name == self.bad else one for name, one in self.named_parameters())
        return nn.functional.linear(given, weight, bias)


def layers() -> nn.Sequential:
    """Return layers of two sizes."""
    return nn.Sequential(Layer(WIDTH, WIDTH), Layer(WIDTH, WIDTH), Layer(WIDTH, 5))


def spoil(model: Any, plain: nn.Sequential, steps: int, part: str) -> None:
    """Take steps without an optimizer, each with another non-finite gradient."""
    names = [(nth, one) for nth in range(3) for one in ("weight", "bias")]
    said: list[str] = []
    for step in range(steps):
        place, name = names[step % len(names)]
        layer: Any = plain[place]
        layer.bad = name if rank() == BAD_RANK else ""
        model.zero_grad()
        model(torch.ones(2, WIDTH)).sum().backward()
        layer.bad = ""
        said.append(f"{place}.{name}")
    say(part=part, spoilt=said)


def main() -> None:
    """Train."""
    start_capture(observers=Observers(numerics=NumericsObserver(NumericsMode.ALL, 64)))
    join()
    for part, given in (("rebuilt", {}), ("never_rebuilt", {"find_unused_parameters": True})):
        plain = layers()
        group: Any = dist.new_group()
        spoil(
            DistributedDataParallel(plain, None, process_group=group, bucket_cap_mb=SMALL_MB, **given), plain, 8, part
        )
    plain = layers()
    fully_shard(plain[0])
    fully_shard(plain)
    spoil(plain, plain, 6, "fsdp")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
