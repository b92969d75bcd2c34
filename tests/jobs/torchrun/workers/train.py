"""A typical training; at its end each rank reports its results, and what torch counted."""

# Without `from __future__ import annotations`: DDP inspects the annotations of a hook.
import hashlib
import json
import pickle
import random
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def digest(value: Any) -> str:
    """A hash of anything that can be pickled."""
    return hashlib.sha256(pickle.dumps(value)).hexdigest()


def data() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches from a worker that is forked now."""
    generator = torch.Generator().manual_seed(3)
    dataset = TensorDataset(torch.randn(48, 8, generator=generator), torch.randint(4, (48,), generator=generator))
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, seed=5)
    return iter(DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1))


def reduce_in_python(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook as users write them."""
    buffer = bucket.buffer().div_(dist.get_world_size())
    future = dist.all_reduce(buffer, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


def train(model: DistributedDataParallel, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """An epoch, with two batches to a step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss = torch.zeros(())
    for number, (inputs, labels) in enumerate(batches):
        inputs = inputs + float(numpy.random.normal()) * 0.01 + random.random() * 0.01
        if number % 2 == 0:
            with model.no_sync():
                torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            continue
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss.detach())
    return loss.item()


def network() -> torch.nn.Module:
    """A model with buffers and with random numbers of its own."""
    layers: list[torch.nn.Module] = [torch.nn.Linear(8, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU()]
    layers += [torch.nn.Dropout(0.1), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)]
    return torch.nn.Sequential(*layers)


def main() -> None:
    """Train twice: with DDP's own reduction in many buckets, and with a hook."""
    dist.init_process_group("gloo")
    for seed in (random.seed, numpy.random.seed, torch.manual_seed):
        seed(11)
    # Forked before gloo's threads run anything for the first time: `fork` leaves the lock of `__cxa_atexit`, which C++
    # takes for each first use of a static, as it is, and the child would wait for it forever (pytorch#130610).
    epochs = [data(), data()]
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        plain = DistributedDataParallel(network(), bucket_cap_mb=0.001, find_unused_parameters=True)
        hooked = DistributedDataParallel(network())
        hooked.register_comm_hook(None, reduce_in_python)
        losses = [train(plain, epochs[0]), train(hooked, epochs[1])]
    issued = Counter(event.name for event in profiler.events() if event.name.startswith("c10d::"))
    report = {
        "rank": dist.get_rank(),
        "losses": losses,
        "weights": [digest({k: v.numpy() for k, v in model.state_dict().items()}) for model in (plain, hooked)],
        "random": [digest(state) for state in (random.getstate(), numpy.random.get_state())],
        "torch_random": digest(torch.get_rng_state().tolist()),
        "issued": issued,
    }
    sys.stdout.write(json.dumps(report) + "\n")  # in one piece: ranks share the pipe
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
