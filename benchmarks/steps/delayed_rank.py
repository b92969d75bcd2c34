"""Jobs of four ranks on gloo, with one rank that is late before one line. They sleep instead of computing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from otel_torchdist import mark_step

RANKS: Final = 4
PATIENCE: Final = timedelta(seconds=20)
_MICROBATCHES: Final = 3
_SHORT_S: Final = 0.004
_LONG_S: Final = 0.008
_OTHER_S: Final = 0.0025
"""Delay of another rank, in seconds, which hides half of a delay of 5 ms."""


def train(rank: int, folder: Path, job: str, delay_s: float, steps: int) -> None:
    """Run a rank of a job, and write the duration of each step.

    Args:
        rank: The rank.
        folder: Folder for the job's store and the durations.
        job: A key of `JOBS`.
        delay_s: Delay of the late rank, in seconds.
        steps: Number of steps.
    """
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS)}
    dist.init_process_group("gloo", f"file://{folder}/store", PATIENCE, world_size=RANKS, rank=rank)
    step = JOBS[job](rank, delay_s)
    durations: list[float] = []
    for _ in range(steps):
        begin_s = time.perf_counter()
        step()
        mark_step()
        durations.append(time.perf_counter() - begin_s)
    (folder / f"steps-{rank}.json").write_text(json.dumps(durations))
    dist.destroy_process_group()


def _plain(rank: int, delay_s: float) -> Callable[[], None]:
    late_s = delay_s * (rank == 2)

    def step() -> None:
        time.sleep(_LONG_S)
        dist.all_reduce(torch.ones(4))
        time.sleep(_LONG_S + late_s)
        dist.all_reduce(torch.ones(4))  # late: plain

    return step


def _half_hidden(rank: int, delay_s: float) -> Callable[[], None]:
    late_s, other_s = delay_s * (rank == 2), _OTHER_S * (rank == 1)
    own = _own_group(rank, ([0, 1], [2, 3]))

    def step() -> None:
        time.sleep(_SHORT_S + other_s)
        dist.all_reduce(torch.ones(4), group=own)
        time.sleep(_LONG_S + late_s)
        dist.all_reduce(torch.ones(4))  # late: half hidden

    return step


def _pipeline(rank: int, delay_s: float) -> Callable[[], None]:
    """Run two pipelines of two stages each, 0 to 1 and 2 to 3. Ranks of one stage reduce their gradients."""
    late_s, peer, is_first = delay_s * (rank == 3), rank ^ 1, rank % 2 == 0
    own = _own_group(rank, ([0, 2], [1, 3]))

    def step() -> None:
        sent: list[dist.Work | None] = []  # a send of gloo waits for its receiver, which may itself be sending
        for _ in range(_MICROBATCHES if is_first else 0):
            time.sleep(_SHORT_S)
            sent.append(dist.isend(torch.ones(4), peer))
        for nth in range(_MICROBATCHES):
            dist.recv(torch.ones(4), peer)
            time.sleep(_SHORT_S + late_s * (nth == 0))
            if not is_first:
                sent.append(dist.isend(torch.ones(4), peer))  # late: pipeline
        for work in sent:
            assert work is not None
            work.wait()
        dist.all_reduce(torch.ones(4), group=own)

    return step


def _own_group(rank: int, groups: Iterable[list[int]]) -> dist.ProcessGroup:
    """Create groups, and return the group of the rank."""
    [own] = [group for members in groups for group in [dist.new_group(members)] if rank in members]
    assert isinstance(own, dist.ProcessGroup)
    return own


JOBS: Final[dict[str, Callable[[int, float], Callable[[], None]]]] = {
    "plain": _plain,
    "half hidden": _half_hidden,
    "pipeline": _pipeline,
}
LATE_RANK: Final = {"plain": 2, "half hidden": 2, "pipeline": 3}


def late_line(job: str) -> int:
    """Return the line before which a rank of a job is late."""
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# late: {job}"))
