"""Healthy behavior that looks like trouble: one program per routine for the ranks, and how long its pauses are.

Unannounced pauses of a single rank are shorter than the threshold, except in routines that state how often they are
reported: the README has the rule.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from tests.jobs.faults.simulated.simulated_job import SimulatedJob
from tests.jobs.faults.simulated.simulated_rank import (
    STEP,
    WAIT,
    Action,
    Compute,
    Expect,
    Group,
    Meet,
    Pass,
    Program,
    Start,
)

Steps = Generator[Action, None, None]
BELOW_S: Final = 8.0
COMPILER: Final = "/usr/lib/python3/site-packages/torch/_dynamo/convert_frame.py"


def everybody(size: int) -> Group:
    """The default group."""
    return Group("default_pg", tuple(range(size)))


class Jitter:
    """Random durations of one rank, reproducible for a seed."""

    def __init__(self, seed: int, rank: int, step_s: float) -> None:
        self.random = random.Random(seed * 1_000 + rank)
        self.step_s = step_s

    def another(self) -> Jitter:
        """Durations of another thread of the rank."""
        return Jitter(self.random.randrange(1 << 30), 0, self.step_s)

    def compute(self, share: float = 1.0, spread: float = 0.05) -> Compute:
        """A random variation of a part of a step."""
        return Compute(self.step_s * share * max(0.2, self.random.gauss(1.0, spread)))


def plain(dice: Jitter, rank: int, size: int) -> Steps:
    """Buckets of gradients during backward, then the optimizer."""
    world = everybody(size)
    while True:
        yield dice.compute(0.6)
        yield Meet(world, is_async=True)
        yield dice.compute(0.3)
        yield Meet(world, is_async=True)
        yield WAIT
        yield STEP


def accumulation(dice: Jitter, rank: int, size: int) -> Steps:
    """Eight batches per step, and no call in between."""
    while True:
        for _ in range(8):
            yield dice.compute(1 / 8, 0.1)
        yield Meet(everybody(size))
        yield STEP


def slow_data(dice: Jitter, rank: int, size: int) -> Steps:
    """Batches arrive late with a heavy tail, on any rank; storage times out and retries after eight seconds."""
    while True:
        yield Compute(min(0.02 * dice.random.paretovariate(1.1), BELOW_S))
        yield dice.compute()
        yield Meet(everybody(size))
        yield STEP


def uneven_data(dice: Jitter, rank: int, size: int) -> Steps:
    """Sentences of any length: sometimes one rank takes twice as long, sometimes another."""
    while True:
        yield Compute(min(dice.step_s * dice.random.uniform(0.5, 1.5), dice.step_s / 2 + BELOW_S))
        yield Meet(everybody(size))
        yield STEP


def waiting(dice: Jitter, rank: int, size: int) -> Steps:
    """During nearly all of a step the others wait for one rank, a different one each time, which reads data for all."""
    for step in count():
        late = random.Random(step).randrange(size)
        yield Compute(dice.random.uniform(4.0, BELOW_S) if rank == late else 0.3)
        yield Meet(everybody(size))
        yield STEP


def join(dice: Jitter, rank: int, size: int) -> Steps:
    """DDP's Join: in each epoch some ranks run out of data, and shadow the calls of the others until all have."""
    world = everybody(size)
    for epoch in count():
        batches = [random.Random(epoch * 31 + one).randrange(48, 52) for one in range(size)]
        for number in range(max(batches)):
            yield Meet(world)  # is any rank left?
            if number < batches[rank]:
                yield dice.compute()
            yield Meet(world)
            yield STEP


def logging(dice: Jitter, rank: int, size: int) -> Steps:
    """Rank 0 writes a line at each step, and uploads something at every fiftieth."""
    for step in count(1):
        yield dice.compute()
        if rank == 0:
            yield Compute(dice.step_s * 0.02 + (dice.random.uniform(1, 6) if step % 50 == 0 else 0))
        yield Meet(everybody(size))
        yield STEP


def pausing(every: int, shortest_s: float, longest_s: float, is_announced: bool) -> Callable[[Jitter, int, int], Steps]:
    """Rank 0 sometimes works alone: it evaluates, or writes a checkpoint; the others wait in a barrier."""

    def program(dice: Jitter, rank: int, size: int) -> Steps:
        world = everybody(size)
        for step in count(1):
            yield dice.compute()
            yield Meet(world)
            yield STEP
            if step % every == 0:
                if rank == 0:
                    if is_announced:
                        yield Expect(3_600)
                    yield Compute(dice.random.uniform(shortest_s, longest_s))
                    if is_announced:
                        yield Expect(0)
                yield Meet(Group("checkpoint", world.ranks, 1), "barrier")

    return program


def compiling(dice: Jitter, rank: int, size: int) -> Steps:
    """All ranks compile at their first step, not equally long, and sometimes a single rank does for a new shape."""
    together = random.Random(round(dice.step_s * 1e6))
    whole_s = together.uniform(20, 200)
    for step in count():
        late = together.randrange(size) if together.random() < 0.003 else -1
        if step == 0:
            yield Compute(whole_s * dice.random.uniform(0.8, 1.2), COMPILER)
        elif late == rank:
            yield Compute(whole_s * dice.random.uniform(0.3, 1.0), COMPILER)
        yield dice.compute()
        yield Meet(everybody(size))
        yield STEP


def pipeline(dice: Jitter, rank: int, size: int) -> Steps:
    """Pipeline stages of which the last takes three times as long, four batches per step, all forwards first."""
    slow = 3.0 if rank == size - 1 else 1.0
    part = slow / (4 * (size + 2))
    while True:
        for _ in range(4):
            if rank > 0:
                yield Pass(rank - 1, is_send=False)
            yield dice.compute(part / 3)
            if rank < size - 1:
                yield Pass(rank + 1, is_send=True)
        for _ in range(4):
            if rank < size - 1:
                yield Pass(rank + 1, is_send=False)
            yield dice.compute(part * 2 / 3)
            if rank > 0:
                yield Pass(rank - 1, is_send=True)
        yield Meet(everybody(size))  # the norm of the gradients
        yield STEP


def mesh(dice: Jitter, rank: int, size: int) -> Steps:
    """Tensor parallelism between adjacent ranks, data parallelism across."""
    if size % 2:
        yield from plain(dice, rank, size)
    pair = Group(f"tp {rank // 2}", (rank - rank % 2, rank - rank % 2 + 1))
    across = Group(f"dp {rank % 2}", tuple(range(rank % 2, size, 2)))
    while True:
        for _ in range(2):
            yield dice.compute(0.5)
            yield Meet(pair)
        yield Meet(across)
        yield STEP


def clipping(dice: Jitter, rank: int, size: int) -> Steps:
    """The norm of gradients is reduced while their reductions are in flight; weights are gathered ahead of data."""
    world, shards = everybody(size), Group("shards", tuple(range(size)), 1)
    while True:
        yield Meet(shards, "all_gather_into_tensor", is_async=True)  # for the next forward, while data is loaded
        yield Compute(min(0.02 * dice.random.paretovariate(1.1), BELOW_S))
        yield WAIT
        yield dice.compute(0.6)
        yield Meet(shards, "reduce_scatter_tensor", is_async=True)
        yield Meet(world, is_async=True)
        yield Meet(world)
        yield WAIT
        yield STEP


def logs(dice: Jitter, group: Group) -> Steps:
    """What a thread does that logs."""
    while True:
        yield dice.compute(0.7, 0.5)
        yield Meet(group)


def saves(dice: Jitter, group: Group) -> Steps:
    """What a new thread does for each checkpoint: ranks write for seconds, not equally long, and meet."""
    yield Compute(dice.random.uniform(0.5, BELOW_S))
    yield Meet(group, "gather")


def threaded(dice: Jitter, rank: int, size: int) -> Steps:
    """DDP, a thread that logs in a group of its own, and one that is new for each checkpoint."""
    world = everybody(size)
    savers = Group("checkpoint", world.ranks, 2)
    yield Start(logs(dice.another(), Group("metrics", world.ranks, 1)), "log")
    for step in count(1):
        yield dice.compute(0.6)
        yield Meet(world, is_async=True)
        yield dice.compute(0.3)
        yield Meet(world, is_async=True)
        yield WAIT
        yield STEP
        if step % 20 == 0:
            yield Start(saves(dice.another(), savers), "save")


@dataclass(frozen=True)
class Routine:
    """A way in which healthy jobs behave.

    Attributes:
        name: Its usual name.
        program: What a rank does.
        steps: After how many steps, on average, something happens to the whole job; 0 for never.
        happens: What that is.
        reported: How many of its pauses are reported according to the README, because they are long and not announced.
        sizes: Numbers of ranks to choose from.
        step_s: Range of step times.
    """

    name: str
    program: Callable[[Jitter, int, int], Steps]
    steps: int = 0
    happens: Callable[[SimulatedJob, random.Random], None] | None = None
    reported: int = 0
    sizes: Sequence[int] = range(2, 7)
    step_s: tuple[float, float] = (1.0, 6.0)

    def of(self, seed: int, step_s: float) -> Program:
        """The program of a job's ranks."""
        return lambda rank, size: self.program(Jitter(seed, rank, step_s), rank, size)


def suspend(job: SimulatedJob, chance: random.Random) -> None:
    """A scheduler suspends the job for another one, for a minute to two hours, sometimes repeatedly."""
    for _ in range(chance.choice((1, 1, 3))):
        job.suspend(chance.uniform(60, 7_200))
        job.run_for(chance.uniform(0.1, 3.0))


def restart(job: SimulatedJob, chance: random.Random) -> None:
    """A node comes or goes, and the launcher restarts all ranks."""
    job.restart(chance.randrange(2, 7))


COMPILATION: Final = Routine("compilation", compiling)
ROUTINES: Final[Sequence[Routine]] = (
    Routine("plain", plain),
    Routine("gradient accumulation", accumulation),
    Routine("data with a heavy tail", slow_data),
    Routine("uneven data", uneven_data),
    Routine("Join", join),
    Routine("logging by rank 0", logging),
    Routine("short evaluation by rank 0", pausing(50, 0.5, BELOW_S, is_announced=False)),
    Routine("announced evaluation by rank 0", pausing(200, 30, 300, is_announced=True)),
    Routine("long checkpoint by rank 0", pausing(200, 45, 60, is_announced=False), reported=1),
    COMPILATION,
    Routine("imbalanced pipeline", pipeline),
    Routine("mesh of two dimensions", mesh),
    Routine("operations in flight", clipping),
    Routine("threads with groups of their own", threaded),
    Routine("suspension", waiting, 50, suspend),
    Routine("elastic restart", uneven_data, 200, restart),
)
