"""Times calls of one variant on request, in its own process."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from itertools import repeat
from multiprocessing.connection import Connection
from statistics import median
from types import FrameType

import torch
from torch import nn

from benchmarks.calls.collectives import (
    Call,
    Collective,
    collectives,
    join_fake_world,
    join_gloo_alone,
    point_to_point,
)
from benchmarks.calls.orders import Calls, Conditions, Inspection, Order, Timing, Variant
from benchmarks.calls.peer import fork_peer
from benchmarks.calls.sizes import calls_of_all_sizes
from benchmarks.calls.variants import Bare, install
from benchmarks.stopwatch import time_of
from otel_torchdist.capture.core.c10d import hot_path

WIDTH = 192
HEADS = 4
SEQUENCES = 4
TOKENS = 64


def serve(connection: Connection, variant: Variant, conditions: Conditions) -> None:
    """Send the kinds of calls, then carry out orders until the connection is closed."""
    torch.set_num_threads(1)
    join = _way_to_join(variant, conditions)
    installed = install(variant, conditions)
    join()
    made = _calls(conditions)
    calls = {name: collective.build(installed.wrap) for name, collective in made.items()}
    connection.send({name: collective.kind for name, collective in made.items()})
    gc.collect()
    gc.freeze()
    time_calls = _time_after_a_layer(_layer()) if conditions.calls is Calls.AFTER_A_LAYER else _time
    while order := connection.recv():
        call = calls[order.collective]
        if isinstance(order, Inspection):
            connection.send(_runs_python(call, order.calls))
        else:
            connection.send(time_calls(installed, call, order, made[order.collective].kind.operations))


def _way_to_join(variant: Variant, conditions: Conditions) -> Call:
    if conditions.calls is Calls.WITH_A_PEER and conditions.backend == "gloo":
        return fork_peer(conditions.tapes / f"store-{variant.name.lower()}")
    if conditions.backend == "gloo":
        return join_gloo_alone
    return lambda: join_fake_world(conditions.world_size)


def _calls(conditions: Conditions) -> dict[str, Collective]:
    if conditions.calls is Calls.OF_ALL_SIZES:
        return calls_of_all_sizes(conditions.world_size)
    if conditions.calls is Calls.WITH_A_PEER:
        return point_to_point()
    made = collectives(conditions.world_size)
    return made | point_to_point() if conditions.backend == "fake" else made


def _runs_python(call: Call, calls: int) -> bool:
    """Return whether a call runs our Python code. The same line must have made it before."""
    found = False

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal found
        found |= event == "call" and frame.f_code.co_filename == hot_path.__file__

    for left in reversed(range(calls)):
        sys.setprofile(look if not left else None)
        call()
    sys.setprofile(None)
    return found


def _time(installed: Bare, call: Call, order: Order, operations: int) -> Timing:
    gc.collect()
    process_ns = time.process_time_ns()
    _make(call, order.warm_up)
    elapsed = time_of(lambda: _make(call, order.calls))
    installed.settle()
    process_ns = time.process_time_ns() - process_ns
    timed = order.calls * operations * 1000
    return Timing(
        caller=elapsed.own / timed,
        process=process_ns / ((order.warm_up + order.calls) * operations * 1000),
        waited=elapsed.waited / timed,
    )


def _layer() -> Callable[[], None]:
    """Run forward and backward of a transformer layer, as a rank does between two collectives."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
    batch = torch.randn(SEQUENCES, TOKENS, WIDTH)

    def compute() -> None:
        layer(batch).square().mean().backward()

    return compute


def _time_after_a_layer(compute: Callable[[], None]) -> Callable[[Bare, Call, Order, int], Timing]:
    def time_calls(installed: Bare, call: Call, order: Order, operations: int) -> Timing:
        gc.collect()
        timings = []
        for _ in range(order.warm_up + order.calls):
            compute()
            timings.append(time_of(call))
        installed.settle()
        timed = timings[order.warm_up :]
        return Timing(
            caller=median(elapsed.own for elapsed in timed) / operations / 1000,
            process=0.0,
            waited=median(elapsed.waited for elapsed in timed) / operations / 1000,
        )

    return time_calls


def _make(call: Call, count: int) -> None:
    for _ in repeat(None, count):
        call()
