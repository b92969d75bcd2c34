"""A rank that trains a transformer in blocks of steps, with or without recording.

All blocks run in one process: two processes with the same code differ by more than the measured effect (memory layout,
the core that they wake up on), and more rounds do not remove that difference. Before each block capture is installed,
and removed again for an unrecorded block, so that switching has the same effect on caches. A comparison between two
kinds of unrecorded blocks shows the resolution of the measurement.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.steps.gloo import issued, join_job
from benchmarks.steps.switching import recording
from benchmarks.steps.training import RANKS, Block, Model, Parallelism, Place, Steps
from otel_torchdist.native.library import Library, find_library

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
PLENTY = 1 << 28


def serve(connection: Connection, parallelism: Parallelism, model: Model, place: Place) -> None:
    """Train as ordered, until the connection is closed."""
    _keep_memory()
    join_job(place)
    library = find_library(place.library) if place.library is not None else None
    training = Training(parallelism, model)
    training.steps(1)  # gloo connects, DDP settles its buckets, FSDP its order
    gc.collect()
    gc.freeze()
    while block := connection.recv():
        connection.send(_run(training, block, place.tapes, library))


def _keep_memory() -> None:
    """Make glibc keep the memory that the model has freed.

    Returning memory and faulting it in again takes a different time in each step, more than the measured effect.
    """
    with contextlib.suppress(AttributeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, PLENTY), (M_MMAP_MAX, 0)):
            mallopt(parameter, value)


class Training:
    """A training of a small transformer on random data."""

    def __init__(self, parallelism: Parallelism, model: Model) -> None:
        torch.manual_seed(0)
        self._model = _spread(model, parallelism)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._batch = torch.randn(model.sequences, model.tokens, model.width)

    def steps(self, count: int) -> tuple[list[float], list[float]]:
        """Run steps; return the duration of each, and its processor time on this thread, in milliseconds."""
        wall_ms, processor_ms = [], []
        for _ in range(count):
            wall_ns, processor_ns = time.perf_counter_ns(), time.thread_time_ns()
            self._step()
            processor_ms.append((time.thread_time_ns() - processor_ns) / 1e6)
            wall_ms.append((time.perf_counter_ns() - wall_ns) / 1e6)
        return wall_ms, processor_ms

    def _step(self) -> None:
        self._model(self._batch).square().mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


def _spread(model: Model, parallelism: Parallelism) -> nn.Module:
    width = model.width
    layers = [
        nn.TransformerEncoderLayer(width, model.heads, 4 * width, dropout=0.0, batch_first=True)
        for _ in range(model.layers)
    ]
    whole = nn.Sequential(*layers, nn.LayerNorm(width))
    if parallelism is Parallelism.DDP:
        return DistributedDataParallel(whole, bucket_cap_mb=model.bucket_mb)
    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(whole, mesh=mesh)
    return whole


def _run(training: Training, block: Block, tapes: Path, library: Library | None) -> Steps:
    with recording(block.switch, tapes, library) as recorded:
        before = issued()
        training.steps(block.warm_up)
        gc.collect()
        wall_ms, processor_ms = training.steps(block.steps)
        made = issued() - before
    return Steps(wall_ms, processor_ms, made, recorded.operations)
