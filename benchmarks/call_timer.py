"""A process with one variant in it, which times calls on request."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from itertools import repeat
from multiprocessing.connection import Connection
from statistics import median

import torch
from torch import nn

from benchmarks.collectives import Call, collectives, join_world
from benchmarks.orders import Calls, Conditions, Order, Timing, Variant
from benchmarks.sizes import calls_of_all_sizes
from benchmarks.stopwatch import time_of
from benchmarks.variants import Bare, install

WIDTH = 192
HEADS = 4
SEQUENCES = 4
TOKENS = 64


def serve(connection: Connection, variant: Variant, conditions: Conditions) -> None:
    """Send what can be timed, then obey orders until there are none."""
    torch.set_num_threads(1)
    installed = install(variant, conditions)
    join_world(conditions.world_size)
    of_all_sizes = conditions.calls is Calls.OF_ALL_SIZES
    made = calls_of_all_sizes(conditions.world_size) if of_all_sizes else collectives()
    calls = {name: installed.wrap(collective) for name, collective in made.items()}
    connection.send(list(calls))
    gc.collect()
    gc.freeze()
    time_calls = _time_after_a_layer(_layer()) if conditions.calls is Calls.AFTER_A_LAYER else _time
    while order := connection.recv():
        connection.send(time_calls(installed, calls[order.collective], order))


def _time(installed: Bare, call: Call, order: Order) -> Timing:
    gc.collect()
    process_ns = time.process_time_ns()
    _make(call, order.warm_up)
    elapsed = time_of(lambda: _make(call, order.calls))
    installed.settle()
    process_ns = time.process_time_ns() - process_ns
    return Timing(
        caller=elapsed.own / order.calls / 1000,
        process=process_ns / (order.warm_up + order.calls) / 1000,
        waited=elapsed.waited / order.calls / 1000,
    )


def _layer() -> Callable[[], None]:
    """One layer of a transformer, with its gradients: what a rank does between two collectives."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
    batch = torch.randn(SEQUENCES, TOKENS, WIDTH)

    def compute() -> None:
        layer(batch).square().mean().backward()

    return compute


def _time_after_a_layer(compute: Callable[[], None]) -> Callable[[Bare, Call, Order], Timing]:
    def time_calls(installed: Bare, call: Call, order: Order) -> Timing:
        gc.collect()
        timings = []
        for _ in range(order.warm_up + order.calls):
            compute()
            timings.append(time_of(call))
        installed.settle()
        timed = timings[order.warm_up :]
        return Timing(
            caller=median(elapsed.own for elapsed in timed) / 1000,
            process=0.0,
            waited=median(elapsed.waited for elapsed in timed) / 1000,
        )

    return time_calls


def _make(call: Call, count: int) -> None:
    for _ in repeat(None, count):
        call()
