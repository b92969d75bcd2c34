"""One rank that trains in the way that its argument names, with three collectives between two steps."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer

from otel_torchdist import mark_step
from otel_torchdist.capture.parts.steps import REPLACES_CHOSEN_AFTER
from otel_torchdist.tape.figures import read_figures
from tests.support.ranks.rank import join, own_tape, say, start_capture

STEPS = 5


def parameter() -> torch.nn.Parameter:
    """A parameter with a gradient."""
    made = torch.nn.Parameter(torch.ones(2))
    made.grad = torch.ones(2)
    return made


def communicate(times: int = 3) -> None:
    """Call collectives of the default group."""
    for _ in range(times):
        dist.all_reduce(torch.ones(1))


def one_optimizer() -> None:
    """Train in the usual way."""
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    for _ in range(STEPS):
        communicate()
        optimizer.step()


def two_optimizers() -> None:
    """A GAN: two steps of the discriminator and one of the generator per iteration; the first seen counts."""
    generator, discriminator = (torch.optim.SGD([parameter()], lr=0.1) for _ in range(2))
    for _ in range(STEPS):
        communicate()
        generator.step()
        discriminator.step()
        discriminator.step()


def zero() -> None:
    """An optimizer that calls another within its step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = ZeroRedundancyOptimizer([parameter()], torch.optim.SGD, lr=0.1)
    for _ in range(STEPS):
        communicate(2)
        optimizer.step()  # calls one broadcast itself


def raising() -> float:
    """Raise in a closure that an optimizer calls."""
    raise ZeroDivisionError


def step_raises() -> None:
    """A step that raises does not count, and does not hide those that follow."""
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    with contextlib.suppress(ZeroDivisionError):
        optimizer.step(raising)
    for _ in range(STEPS):
        communicate()
        optimizer.step()


def forks() -> None:
    """Each step forks a child, as for loading data, which returns from the step and ends."""
    parent = os.getpid()

    def closure() -> float:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        return 0.0

    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    for _ in range(STEPS):
        communicate()
        optimizer.step(closure)
        if os.getpid() != parent:
            os._exit(0)


def killed() -> None:
    """The process is killed in the middle of an optimizer's step."""
    communicate()
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    optimizer.step()
    optimizer.step(lambda: os.kill(os.getpid(), signal.SIGKILL))  # type: ignore[arg-type, return-value]


def begins_anew() -> None:
    """Run out of memory in the first step, and create a new optimizer while the old one may still exist."""
    old = torch.optim.SGD([parameter()], lr=0.1)
    with contextlib.suppress(ZeroDivisionError):
        old.step(raising)
    one_optimizer()


def phases() -> None:
    """First the head is trained, then everything with another optimizer, while the first one still exists."""
    head, everything = (torch.optim.SGD([parameter()], lr=0.1) for _ in range(2))
    for _ in range(2):
        communicate()
        head.step()
    for _ in range(REPLACES_CHOSEN_AFTER + 2):
        communicate()
        everything.step()


def two_threads() -> None:
    """Two towers: the second steps in the middle of the first one's step, and vice versa."""
    first, second = (torch.optim.SGD([parameter()], lr=0.1) for _ in range(2))
    first.step()
    meet = threading.Barrier(2)

    def closure() -> float:
        meet.wait()
        meet.wait()
        return 0.0

    def other() -> None:
        for _ in range(STEPS):
            meet.wait()
            second.step()
            meet.wait()
        for _ in range(STEPS):
            second.step(closure)

    thread = threading.Thread(target=other)
    thread.start()
    for _ in range(STEPS):
        communicate()
        first.step(closure)
    for _ in range(STEPS):
        meet.wait()
        communicate()
        first.step()
        meet.wait()
    thread.join()


def in_backward() -> None:
    """An optimizer for each parameter, which steps as soon as the gradient is available: one step per backward."""
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(40)]
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in parameters}
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(lambda parameter: optimizers[parameter].step())
    for _ in range(STEPS):
        communicate()
        torch.stack(parameters).sum().backward()


def container() -> None:
    """An optimizer that steps others, as in torchtitan."""
    inner = [torch.optim.SGD([parameter()], lr=0.1) for _ in range(REPLACES_CHOSEN_AFTER + 1)]

    class Container(torch.optim.Optimizer):
        def step(self, closure: object = None) -> None:
            for optimizer in inner:
                optimizer.step()

    outer = Container([parameter()], {})
    for _ in range(STEPS):
        communicate()
        outer.step()


def closures() -> None:
    """LBFGS evaluates its closure, which communicates, many times per step; there is one all_reduce in each here."""
    value = parameter()
    optimizer = torch.optim.LBFGS([value], max_iter=3, tolerance_grad=0, tolerance_change=0)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (value**4).sum()
        loss.backward()
        communicate(1)
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)


def train_scaled(make: type[torch.amp.GradScaler], wrap: Callable[[torch.optim.Optimizer], object]) -> None:
    """Training in which every second step overflows, the first one too."""
    value = parameter()
    optimizer = torch.optim.SGD([value], lr=0.1)
    scaler = make("cpu")
    for number in range(STEPS):
        communicate()
        value.grad = torch.full((2,), math.inf if number % 2 == 0 else 1.0)
        scaler.scale(torch.ones(1))
        scaler.step(wrap(optimizer))
        scaler.update()


def scaled() -> None:
    """Train with a scaler. Skipped steps count as steps."""
    train_scaled(torch.amp.GradScaler, lambda optimizer: optimizer)


def scaled_by_fsdp() -> None:
    """FSDP's scaler is a subclass of torch's, with one collective more."""
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    train_scaled(ShardedGradScaler, lambda optimizer: optimizer)


def scaled_and_wrapped() -> None:
    """Accelerate's optimizer is a subclass that is not hooked and calls the real one."""

    class Wrapped(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

        @property
        def param_groups(self) -> list[dict[str, object]]:
            return self.optimizer.param_groups

        def step(self, closure: object = None) -> None:
            self.optimizer.step()

    train_scaled(torch.amp.GradScaler, Wrapped)


def scaled_and_fused() -> None:
    """A fused optimizer checks for the overflow itself: it is always called."""
    value = parameter()
    optimizer = torch.optim.SGD([value], lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu")
    for number in range(STEPS):
        communicate()
        value.grad = torch.full((2,), math.inf if number % 2 == 0 else 1.0)
        scaler.scale(torch.ones(1))
        scaler.step(optimizer)
        scaler.update()


def scaler_off() -> None:
    """With the scaler disabled the optimizer is called as without one."""
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(STEPS):
        communicate()
        scaler.step(optimizer)
        scaler.update()


def marked() -> None:
    """From the first `mark_step` on, optimizers no longer end steps."""
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    communicate()
    optimizer.step()
    for _ in range(STEPS - 1):
        communicate()
        optimizer.step()
        mark_step()


def windows() -> None:
    """Train without any source of steps but windows of collectives."""
    communicate(64 * STEPS + 1)


def windows_until_optimizer() -> None:
    """An optimizer that comes late ends the counting of windows."""
    communicate(64 + 3)
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    for _ in range(STEPS - 1):
        optimizer.step()
        communicate(64)


def amounts() -> None:
    """Say what a step has processed: numbers, one of them beyond integers of 64 bits in the sum, and what is none."""
    mark_step(samples=8, tokens=8 * 512, flops=1e25)
    mark_step(samples=0.0, flops=1e25)
    for bad in (-1, math.nan, math.inf, "8", torch.tensor(8)):
        mark_step(samples=bad)  # type: ignore[arg-type]  # bad on purpose
    mark_step(tokens=-2)
    figures = read_figures(own_tape(capture).words)
    say(samples=figures.samples, tokens=figures.tokens, flops=figures.flops)


mark_step()  # switched off, it does nothing
capture = start_capture()
join()
way: Callable[[], None] = globals()[sys.argv[1]]
way()
dist.destroy_process_group()
mark_step()
torch.optim.SGD([parameter()], lr=0.1).step()
