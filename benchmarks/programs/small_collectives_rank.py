"""A rank that runs mostly small collectives, with recording turned on as by a user, or without it.

The same processes run the program in every variant, each time with a new process group and a new tape: different
processes with the same code differ by more than the measured effect.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import time
from collections.abc import Iterator, Mapping, Set
from datetime import timedelta
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.programs.small_collectives_turn import RANKS, Loop, Program
from benchmarks.steps.gloo import issued
from otel_torchdist import TorchDistInstrumentor
from otel_torchdist.launch.switch import switch_on_from_environment

PATIENCE = timedelta(seconds=120)
LARGEST = 2_048
OBJECTS = 4_096
"""Number of prepared objects of random sizes, which are used repeatedly."""
AFTER_A_PAUSE = 10
"""Number of turns until caches are warm again."""


def serve(connection: Connection, rank: int, cores: Set[int]) -> None:
    """Run programs as ordered, until the connection is closed.

    For each program, report the end of the warm-up, run the loop on request, answer, and end the program on request.

    Args:
        connection: Connection to the controlling process.
        rank: The rank.
        cores: The cores that all ranks share.
    """
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "LOCAL_WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank)}
    gc.collect()
    gc.freeze()
    while program := connection.recv():
        with _environment(program.settings), _switched_on(bool(program.settings)), _joined(program, rank):
            _run(connection, program, rank)
        connection.send(True)


def _run(connection: Connection, program: Program, rank: int) -> None:
    turns = _turns(rank)
    for _ in islice(turns, program.warm_up):
        pass
    connection.send(True)
    connection.recv()
    for _ in islice(turns, AFTER_A_PAUSE):
        pass
    dist.barrier()
    gc.collect()
    before, processor_ns, wall_ns = issued(), time.process_time_ns(), time.perf_counter_ns()
    for _ in islice(turns, program.turns):
        pass
    wall_ns, processor_ns = time.perf_counter_ns() - wall_ns, time.process_time_ns() - processor_ns
    made = issued()
    connection.send(Loop(wall_ns / 1e9, processor_ns / 1e9, made - before, made))
    connection.recv()


def _turns(rank: int) -> Iterator[None]:
    """Exchange objects of different sizes, as evaluation loops and controllers do; five collectives per turn."""
    chance = random.Random(rank)
    objects = [chance.randbytes(chance.randrange(1, LARGEST)) for _ in range(OBJECTS)]
    gathered: list[Any] = [None] * RANKS
    flag = torch.ones(1)
    turn = 0
    while True:
        own = objects[turn % OBJECTS]
        dist.all_gather_object(gathered, own)
        dist.broadcast_object_list([own], src=turn % RANKS)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        turn += 1
        yield


@contextlib.contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    os.environ |= settings
    yield
    for name in settings:
        del os.environ[name]


@contextlib.contextmanager
def _switched_on(is_recorded: bool) -> Iterator[None]:
    if is_recorded:
        switch_on_from_environment()
    yield
    if is_recorded:
        TorchDistInstrumentor().uninstrument()


@contextlib.contextmanager
def _joined(program: Program, rank: int) -> Iterator[None]:
    dist.init_process_group(
        "gloo", init_method=f"file://{program.store}", rank=rank, world_size=RANKS, timeout=PATIENCE
    )
    yield
    dist.destroy_process_group()
