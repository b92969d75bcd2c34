"""Healthy behavior of jobs of 8 to 64 ranks that looks like trouble: many groups, long steps, and pauses of their own.

As in `habits.py`, unannounced pauses of a single rank are shorter than the threshold unless stated otherwise.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count
from typing import Final

from tests.jobs.faults.simulated.routines import (
    BELOW_S,
    COMPILER,
    Jitter,
    Routine,
    Steps,
    compiling,
    everybody,
    mesh,
    pausing,
    pipeline,
    plain,
    suspend,
    uneven_data,
)
from tests.jobs.faults.simulated.simulated_job import SimulatedJob
from tests.jobs.faults.simulated.simulated_rank import STEP, WAIT, Compute, Group, Meet, Pass

SIZES: Final = (8, 8, 8, 12, 16, 16, 24, 32, 64)
MESHES: Final = (8, 8, 12, 16, 16, 32, 64)
LONG_STEP_S: Final = (10.0, 60.0)


def three_dimensions(dice: Jitter, rank: int, size: int) -> Steps:
    """Tensor parallelism between adjacent ranks, two pipeline stages, data parallelism across; two batches per step."""
    half = size // 2
    stage, peer = rank // half, (rank + half) % size
    pair = Group(f"tp {rank // 2}", (rank - rank % 2, rank - rank % 2 + 1))
    replicas = Group(f"dp {stage} {rank % 2}", tuple(range(stage * half + rank % 2, (stage + 1) * half, 2)))
    while True:
        for is_forward in (True, True, False, False):
            if is_forward == bool(stage):
                yield Pass(peer, is_send=False)
            yield dice.compute(1 / 12 if is_forward else 1 / 6)
            yield Meet(pair)
            if is_forward != bool(stage):
                yield Pass(peer, is_send=True)
        yield Meet(replicas, is_async=True)
        yield dice.compute(0.1)
        yield WAIT
        yield Meet(everybody(size))  # the norm of the gradients
        yield STEP


def sharded(dice: Jitter, rank: int, size: int) -> Steps:
    """Weights are gathered before each of three layers, forward and backward, and gradients scattered after them."""
    world, replicas = everybody(size), Group(f"dp {rank % 4}", tuple(range(rank % 4, size, 4)))
    while True:
        for _ in range(3):
            yield Meet(world, "all_gather")
            yield dice.compute(0.1)
        for _ in range(3):
            yield Meet(world, "all_gather")
            yield dice.compute(0.2)
            yield Meet(world, "reduce_scatter", is_async=True)
        yield WAIT
        yield Meet(replicas)
        yield STEP


def growing_checkpoint(dice: Jitter, rank: int, size: int) -> Steps:
    """Rank 0 writes a checkpoint every fortieth step, which takes three seconds at first, and minutes at the end."""
    world = everybody(size)
    for step in count(1):
        yield dice.compute()
        yield Meet(world)
        yield STEP
        if step % 40 == 0:
            if rank == 0:
                yield Compute(3.0 * 1.1 ** min(step // 40, 45) * dice.random.uniform(0.95, 1.05))
            yield Meet(Group("checkpoint", world.ranks, 1), "barrier")


def epochs(dice: Jitter, rank: int, size: int) -> Steps:
    """An epoch begins with new workers of the data loader, half a minute on all ranks; one node's storage is slower."""
    slow = random.Random(round(dice.step_s * 1e6)).randrange(size)
    while True:
        yield Compute(30.0 * dice.random.uniform(0.95, 1.05) + (dice.random.uniform(1, 5) if rank == slow else 0))
        for _ in range(80):
            yield dice.compute()
            yield Meet(everybody(size))
            yield STEP


def long_accumulation(dice: Jitter, rank: int, size: int) -> Steps:
    """Sixteen batches per step of up to a minute, and no call in between."""
    while True:
        for _ in range(16):
            yield dice.compute(1 / 16)
        yield Meet(everybody(size))
        yield STEP


def batch_sizes(dice: Jitter, rank: int, size: int) -> Steps:
    """Batches of as many tokens as fit: some steps take a quarter of the usual time, others four times as long."""
    for step in count():
        length = random.Random(step).choice((0.25, 0.5, 1.0, 1.0, 2.0, 4.0))
        yield dice.compute(length, 0.04)
        yield Meet(everybody(size))
        yield STEP


def slow_disk(dice: Jitter, rank: int, size: int) -> Steps:
    """Rank 1 writes its log to a disk that occasionally does not respond for some seconds."""
    for _ in count():
        yield dice.compute()
        if rank == 1:
            yield Compute(dice.random.uniform(2, BELOW_S) if dice.random.random() < 0.01 else dice.step_s * 0.01)
        yield Meet(everybody(size))
        yield STEP


def evaluation(dice: Jitter, rank: int, size: int) -> Steps:
    """All ranks evaluate from time to time, each its own share, and some have longer sentences."""
    world = everybody(size)
    for step in count(1):
        yield dice.compute()
        yield Meet(world)
        yield STEP
        if step % 150 == 0:
            yield Compute(random.Random(step).uniform(20, 200) + dice.random.uniform(0, BELOW_S))
            yield Meet(world, "all_gather")


def first_step(dice: Jitter, rank: int, size: int) -> Steps:
    """Forward and backward are compiled for minutes, not equally long on all ranks; a quarter has them in its cache."""
    whole_s = random.Random(round(dice.step_s * 1e6)).uniform(60, 300)
    has_cache = dice.random.random() < 0.25
    for share in (1.0, 0.5):
        part = 0.1 if has_cache else dice.random.uniform(0.5, 1.0)
        yield Compute(whole_s * share * part, COMPILER)
        yield dice.compute(share * 2 / 3)
    yield Meet(everybody(size))
    yield STEP
    yield from plain(dice, rank, size)


def restart(job: SimulatedJob, chance: random.Random) -> None:
    """Nodes come or go, and the launcher restarts all ranks."""
    job.restart(chance.choice((8, 10, 12, 16)))


LARGER_ROUTINES: Final[Sequence[Routine]] = (
    Routine("three dimensions", three_dimensions, sizes=MESHES),
    Routine("sharded weights", sharded, sizes=(8, 16)),
    Routine("larger mesh", mesh, sizes=MESHES),
    Routine("longer pipeline", pipeline, sizes=(8, 12, 16)),
    Routine("evaluation of ten minutes by rank 0", pausing(300, 570, 630, is_announced=False), reported=2, sizes=SIZES),
    Routine("the same, announced", pausing(300, 570, 630, is_announced=True), sizes=SIZES),
    Routine("growing checkpoint", growing_checkpoint, sizes=SIZES),
    Routine("slow worker once an epoch", epochs, sizes=SIZES),
    Routine("long accumulation", long_accumulation, sizes=SIZES, step_s=LONG_STEP_S),
    Routine("dynamic batch sizes", batch_sizes, sizes=SIZES),
    Routine("log on a slow disk", slow_disk, sizes=SIZES),
    Routine("evaluation by all", evaluation, sizes=SIZES),
    Routine("compilation for minutes", first_step, sizes=SIZES),
    Routine("compilation before long steps", first_step, sizes=SIZES, step_s=LONG_STEP_S),
    Routine("larger elastic restart", uneven_data, 100, restart, sizes=(8, 12, 16)),
    Routine("restart and compilation", first_step, 60, restart, sizes=(8, 12, 16)),
    Routine("suspension and compilation", compiling, 40, suspend, sizes=(4, 8, 16)),
    Routine(
        "suspension and announced evaluation", pausing(40, 30, 300, is_announced=True), 30, suspend, sizes=(2, 4, 8)
    ),
)
