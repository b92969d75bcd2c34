"""A rank that runs DDP's backward beside a thread that computes in Python, with or without recording."""

from __future__ import annotations

import gc
import importlib
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.calls.collectives import join_gloo_alone
from benchmarks.steps.ddp_turn import BUCKETS, Backwards, Recorder, Turn
from benchmarks.steps.gloo import issued
from benchmarks.steps.switching import recording
from otel_torchdist.native.library import Library, find_library

WIDTH: Final = 256
BUCKET_MB: Final = WIDTH * WIDTH * 4 / 2**20
"""Size of a layer, so that each layer has its own bucket."""


def serve(connection: Connection, recorder: Recorder, tapes: Path, folder: Path | None) -> None:
    """Run backward passes as ordered, until the connection is closed.

    Args:
        connection: Connection to the controlling process.
        recorder: State of torch's flight recorder.
        tapes: Directory for tapes.
        folder: Folder of the native library; None without it.
    """
    # Gloo records in torch 2.8 if told only, and later unless told otherwise.
    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000" if recorder is Recorder.ON else "0"
    torch.set_num_threads(1)
    join_gloo_alone()
    library = find_library(folder) if folder is not None else None
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(BUCKETS)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=BUCKET_MB)
    batch = torch.randn(8, WIDTH)
    for _ in range(3):  # DDP settles its buckets
        _backward_ms(model, batch)
    gc.collect()
    gc.freeze()
    while turn := connection.recv():
        connection.send(_run(model, batch, turn, tapes, library))


def _run(model: nn.Module, batch: torch.Tensor, turn: Turn, tapes: Path, library: Library | None) -> Backwards:
    with recording(turn.switch, tapes, library) as recorded:
        before = issued()
        with _computing():
            for _ in range(turn.warm_up):
                _backward_ms(model, batch)
            took_ms = [_backward_ms(model, batch) for _ in range(turn.backwards)]
        made = issued() - before
    return Backwards(took_ms, made, recorded.operations, _has_recorder())


def _backward_ms(model: nn.Module, batch: torch.Tensor) -> float:
    loss = model(batch).square().mean()
    began_ns = time.perf_counter_ns()
    loss.backward()
    return (time.perf_counter_ns() - began_ns) / 1e6


@contextmanager
def _computing() -> Iterator[None]:
    """Run a thread that holds the GIL for as long as Python allows."""
    is_over = False

    def compute() -> None:
        count = 0
        while not is_over:
            count += 1

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over = True
        thread.join()


def _has_recorder() -> bool:
    c10d: Any = importlib.import_module("torch._C._distributed_c10d")
    return bool(json.loads(c10d._dump_fr_trace_json(True, False)).get("entries"))
