"""Four ranks: DistributedDataParallel and what is built around it."""

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from tests.support.ranks.rank import join, rank
from tests.support.ranks.twin import begin, take

SMALL_MB = 0.0004
"""A bucket of some hundred parameters."""


class Branches(nn.Module):
    """Two branches of which a batch uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, is_first: bool) -> torch.Tensor:
        """Run one of them."""
        return self.first(x) if is_first else self.second(x)


def network() -> nn.Sequential:
    """A network with a buffer, which DDP broadcasts."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8))


def batch() -> torch.Tensor:
    """An input."""
    return torch.ones(4, 8)


def buckets() -> None:
    """Three steps of a model in several buckets, which DDP rebuilds after the first; one step is not synchronized."""
    model = DistributedDataParallel(network(), bucket_cap_mb=SMALL_MB)  # issues
    for _ in range(3):
        loss = model(batch()).sum()  # issues
        loss.backward()  # issues
    with model.no_sync():
        model(batch()).sum().backward()  # issues


def gradients_as_views() -> None:
    """A static graph, gradients that are views of buckets."""
    model = DistributedDataParallel(network(), static_graph=True, gradient_as_bucket_view=True)  # issues
    for _ in range(2):
        loss = model(batch()).sum()  # issues
        loss.backward()  # issues


def unused_parameters() -> None:
    """Ranks use different parameters; DDP reduces a map of them."""
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)  # issues
    for step in range(2):
        loss = model(batch(), is_first=(step + rank()) % 2 == 0).sum()
        loss.backward()  # issues


def uneven_inputs() -> None:
    """`Join`: ranks that have run out of inputs shadow the collectives of the others."""
    model = DistributedDataParallel(nn.Linear(8, 8))  # issues
    with Join([model]):  # issues
        for _ in range(1 + rank()):
            loss = model(batch()).sum()  # issues
            loss.backward()  # issues


def with_hook(hook: Any, state: Any = None, steps: int = 3) -> None:
    """Steps with a communication hook."""
    model = DistributedDataParallel(nn.Linear(64, 64))  # issues
    model.register_comm_hook(state, hook)
    for _ in range(steps):
        model(torch.ones(4, 64)).sum().backward()  # issues


def all_reduce_hook() -> None:
    """The hook equivalent to DDP's default."""
    with_hook(default_hooks.allreduce_hook)


def compressing_hooks() -> None:
    """Half precision, alone and around another hook."""
    with_hook(default_hooks.fp16_compress_hook)
    with_hook(default_hooks.bf16_compress_hook)
    with_hook(default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook))


def power_sgd_hook() -> None:
    """PowerSGD: two collectives per bucket from the start, chained by futures' callbacks."""
    with_hook(powerSGD_hook.powerSGD_hook, powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2))


def own_hook() -> None:
    """A user's hook, which issues operations of its own."""

    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        dist.all_reduce(bucket.buffer())  # issues
        work = dist.all_reduce(bucket.buffer(), async_op=True)  # issues
        return work.get_future().then(lambda future: future.value()[0])

    with_hook(hook)


def local_sgd() -> None:
    """Gradients are averaged in halves of the world, and parameters occasionally among all."""
    halves, _ = dist.new_subgroups(group_size=2)
    state = post_localSGD_hook.PostLocalSGDState(None, halves, start_localSGD_iter=2)
    model = DistributedDataParallel(nn.Linear(8, 8))  # issues
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = PeriodicModelAverager(period=2, warmup_steps=2)
    optimizer = PostLocalSGDOptimizer(SGD(model.parameters(), lr=0.1), averager)
    for _ in range(4):
        model(batch()).sum().backward()  # issues
        optimizer.step()  # issues


def averaging_in_tiers() -> None:
    """Averages among two every second step, among all every fourth."""
    averager = HierarchicalModelAverager(period_group_size_dict={2: 2, 4: 4}, warmup_steps=0)
    model = nn.Linear(8, 8)
    model(batch()).sum().backward()  # parameters without gradients are left out
    for _ in range(4):
        averager.average_parameters(list(model.parameters()))  # issues


def sharded_optimizer() -> None:
    """ZeroRedundancyOptimizer broadcasts what each rank has updated."""
    model = DistributedDataParallel(network())  # issues
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=SGD, lr=0.1)
    for _ in range(2):
        model(batch()).sum().backward()  # issues
        optimizer.step()  # issues
    optimizer.consolidate_state_dict()  # issues


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    begin()
    join()
    take(
        buckets,
        gradients_as_views,
        unused_parameters,
        uneven_inputs,
        all_reduce_hook,
        compressing_hooks,
        power_sgd_hook,
        own_hook,
        local_sgd,
        averaging_in_tiers,
        sharded_optimizer,
    )
    dist.barrier()
    dist.destroy_process_group()
