"""Ranks that communicate inside and outside of backward passes. Each part reports which records belong to it."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.support.ranks.rank import join, rank, say, start_capture, world_size

WIDTH = 8
DEEP = 70
"""Backward passes within each other; from sixty on autograd runs them on threads of its own."""


def layers() -> nn.Sequential:
    """Two layers."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def ones(*shape: int) -> torch.Tensor:
    """A tensor that needs a gradient."""
    return torch.ones(*shape, requires_grad=True)


def ddp() -> Callable[[], Any]:
    """The reducer is C++."""
    model = DistributedDataParallel(layers())
    return lambda: model(torch.ones(2, WIDTH)).sum().backward()


def fsdp() -> Callable[[], Any]:
    """Parameters are gathered in both passes, gradients scattered in one."""
    model = layers()
    fully_shard(model[0])  # the outermost is not gathered again
    fully_shard(model)
    return lambda: model(torch.ones(2, WIDTH)).sum().backward()


def tensor_parallel() -> Callable[[], Any]:
    """One all_reduce in each pass."""
    mesh = init_device_mesh("cpu", (world_size(),))
    model = parallelize_module(layers(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return lambda: model(ones(2, WIDTH)).sum().backward()


def gathered(x: torch.Tensor) -> torch.Tensor:
    """A collective with a backward of its own."""
    assert dist.group.WORLD is not None
    return functional.all_gather_tensor_autograd(x, 0, dist.group.WORLD) * 2


def functions() -> Callable[[], Any]:
    """Functional collectives."""
    return lambda: gathered(ones(2, WIDTH)).sum().backward()


def compiled() -> Callable[[], Any]:
    """The same, in compiled graphs of both passes."""
    function: Callable[[torch.Tensor], torch.Tensor] = torch.compile(gathered, backend="aot_eager", fullgraph=True)
    return lambda: function(ones(2, WIDTH)).sum().backward()


def compiled_backward() -> Callable[[], Any]:
    """The backward pass is compiled while it runs."""
    compiler = torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager"))

    def step() -> None:
        loss = gathered(ones(2, WIDTH)).sum()
        with compiler:
            loss.backward()

    return step


def reduced(x: torch.Tensor) -> torch.Tensor:
    """Reduce a tensor without a gradient."""
    y = x * 2
    dist.all_reduce(y.detach())
    return y * y  # what its gradient needs is not saved


def computed_again() -> Callable[[], Any]:
    """Recompute checkpointed activations in the backward pass."""
    return lambda: checkpoint(reduced, ones(4), use_reentrant=False).sum().backward()


class Nested(torch.autograd.Function):
    """A backward pass that runs another one, down to a reduction."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, depth: int) -> torch.Tensor:
        """Pass on."""
        ctx.depth = depth
        return x * 1

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Go deeper."""
        if ctx.depth:
            with torch.enable_grad():
                Nested.apply(ones(1), ctx.depth - 1).sum().backward()
        else:
            dist.all_reduce(torch.ones(2))
        return gradients[0], None


def nested() -> Callable[[], Any]:
    """Nest backward passes. The innermost runs on a thread of autograd."""
    return lambda: Nested.apply(ones(1), DEEP).sum().backward()


def by_hand() -> Callable[[], Any]:
    """Reduce gradients after the backward pass, and in a hook during it."""
    weight, hooked = ones(4), ones(4)
    hooked.register_post_accumulate_grad_hook(lambda parameter: dist.all_reduce(parameter.grad))

    def step() -> None:
        (weight * hooked).sum().backward()
        dist.all_reduce(weight.grad)

    return step


def in_callbacks() -> Callable[[], Any]:
    """Use PowerSGD, which continues in callbacks. Rank 0 waits for rank 1, so its callbacks run on gloo's threads."""
    model = DistributedDataParallel(layers())
    state = PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.1)
    model.register_comm_hook(state, powerSGD_hook)

    def step() -> None:
        for _ in range(5):
            loss = model(torch.ones(2, WIDTH)).sum()
            time.sleep(0.2 * rank())
            loss.backward()

    return step


PARTS = (
    ddp,
    fsdp,
    tensor_parallel,
    functions,
    compiled,
    compiled_backward,
    computed_again,
    nested,
    by_hand,
    in_callbacks,
)


def main() -> None:
    """Run the parts one after the other."""
    capture = start_capture()
    join()
    recorder = capture.current_recorder()
    assert recorder is not None
    for part in PARTS:
        step = part()
        first = recorder.tape.next_number()
        step()
        say(part=part.__name__, first=first, end=recorder.tape.next_number())
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)
    warnings.simplefilter("ignore")
    main()
