"""A process with one variant in it, which times calls when it is told to."""

from __future__ import annotations

import gc
import time
from itertools import repeat
from multiprocessing.connection import Connection

import torch

from benchmarks.collectives import Call, collectives, join_world
from benchmarks.orders import Calls, Conditions, Order, Timing, Variant
from benchmarks.sizes import calls_of_all_sizes
from benchmarks.stopwatch import time_of
from benchmarks.variants import Bare, install


def serve(connection: Connection, variant: Variant, conditions: Conditions) -> None:
    """Say what can be timed, then obey orders until there are none."""
    torch.set_num_threads(1)
    installed = install(variant, conditions)
    join_world(conditions.world_size)
    made = collectives() if conditions.calls is Calls.USUAL else calls_of_all_sizes(conditions.world_size)
    calls = {name: installed.wrap(collective) for name, collective in made.items()}
    connection.send(list(calls))
    gc.collect()
    gc.freeze()
    while order := connection.recv():
        connection.send(_time(installed, calls[order.collective], order))


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


def _make(call: Call, count: int) -> None:
    for _ in repeat(None, count):
        call()
