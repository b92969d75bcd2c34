"""A process that times the parts of recording that record no operations, switched on and off."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch import nn
from torch.distributed import rpc

from benchmarks.calls.collectives import join_gloo_alone
from benchmarks.parts.events import Timed, events
from benchmarks.parts.orders import Event, PartTimes, PartTurn
from benchmarks.steps.switching import recording
from otel_torchdist.native.library import Library, find_library

RARE: Final = (Event.SAVE, Event.FILE)
"""Events that occur once in many steps."""
CALLS: Final = 50
"""Remote calls per measurement of processor time, which includes the threads that answer them."""


def serve(connection: Connection, tapes: Path, folder: Path | None, is_rpc: bool) -> None:
    """Time events as ordered, until the connection is closed.

    Args:
        connection: Connection to the controlling process.
        tapes: Directory for tapes, with a subdirectory for checkpoints.
        folder: Folder of the native library; None without it.
        is_rpc: Whether to time only remote calls.
    """
    torch.set_num_threads(1)
    library = find_library(folder) if folder is not None else None
    if is_rpc:
        _serve_calls(connection, tapes, library)
        return
    join_gloo_alone()
    layer = _layer()
    saved = tapes / "saved"
    saved.mkdir()
    known = events(saved)
    gc.collect()
    gc.freeze()
    while turn := connection.recv():
        with recording(turn.switch, tapes, library):
            connection.send({event: _time(event, timed, turn, layer) for event, timed in known.items()})


def _time(event: Event, timed: Timed, turn: PartTurn, layer: Callable[[], object]) -> PartTimes:
    if event in RARE:
        return PartTimes(min(_each(timed, max(turn.in_a_row // 20, 2), lambda: None)), None)
    in_a_row = min(_each(timed, turn.in_a_row, lambda: None))
    return PartTimes(in_a_row, median(_each(timed, turn.after_a_layer, layer)))


def _each(timed: Timed, count: int, between: Callable[[], object]) -> list[float]:
    """Return the microseconds of processor time of each event."""
    found: list[float] = []
    clock = time.thread_time_ns
    for _ in range(count):
        between()
        timed.prepare()
        began = clock()
        timed.act()
        found.append((clock() - began) / 1000)
    return found


def _layer() -> Callable[[], object]:
    """Run forward and backward of a layer, which evicts other data from the caches."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
    batch = torch.randn(1, 128, 512)
    engine: Any = torch.autograd

    def compute() -> None:
        engine.grad(layer(batch).square().mean(), list(layer.parameters()))  # no part records this

    return compute


def _serve_calls(connection: Connection, tapes: Path, library: Library | None) -> None:
    """Time remote calls of this process to itself."""
    store = tapes / "rpc-store"
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    while turn := connection.recv():
        store.unlink(missing_ok=True)
        with recording(turn.switch, tapes, library):
            options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=2, init_method=f"file://{store}")
            rpc.init_rpc("worker", rank=0, world_size=1, rpc_backend_options=options)
            rounds = [_calls() for _ in range(max(turn.in_a_row // CALLS, 2))]
            rpc.shutdown()
        connection.send({Event.CALL: PartTimes(min(rounds), None)})


def _calls() -> float:
    began = time.process_time_ns()
    for _ in range(CALLS):
        rpc.rpc_sync("worker", nothing)
    return (time.process_time_ns() - began) / 1000 / CALLS


def nothing() -> None:
    """Do nothing: the function called remotely."""
