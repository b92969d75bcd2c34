"""A process with one variant in it, which times calls when it is told to."""

from __future__ import annotations

import gc
from itertools import repeat
from multiprocessing.connection import Connection

import torch

from benchmarks.collectives import Call, collectives, join_world
from benchmarks.orders import Conditions, Variant
from benchmarks.stopwatch import time_of
from benchmarks.variants import install


def serve(connection: Connection, variant: Variant, conditions: Conditions) -> None:
    """Say what can be timed, then obey orders until there are none."""
    torch.set_num_threads(1)
    installed = install(variant, conditions)
    join_world()
    calls = {name: installed.wrap(collective) for name, collective in collectives().items()}
    connection.send(list(calls))
    while order := connection.recv():
        call = calls[order.collective]
        gc.collect()
        _make(call, order.warm_up)
        elapsed = time_of(lambda call=call, count=order.calls: _make(call, count))
        installed.settle()
        connection.send(elapsed)


def _make(call: Call, count: int) -> None:
    for _ in repeat(None, count):
        call()
