"""Measures the cost of value checks in training steps: DDP and FSDP2, 19 million parameters, two ranks on gloo.

The figure is the processor time of the training thread inside our observers, as a share of its processor time per step.
Unlike the duration of whole steps, it does not depend on other ranks and other programs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from benchmarks.forks import forked
from benchmarks.results.sections import Goal, Section
from benchmarks.results.spread import Spread
from benchmarks.steps.numerics import GOAL_ALL_PERCENT, GOAL_SAMPLED_PERCENT
from benchmarks.steps.numerics_orders import CheckOrder
from benchmarks.steps.step_time import LARGE, SMALL
from benchmarks.steps.training import RANKS, Model, Parallelism, Place
from otel_torchdist.config import NumericsMode

GOALS: Final = {
    NumericsMode.OFF: 0.0,
    NumericsMode.SAMPLED: GOAL_SAMPLED_PERCENT,
    NumericsMode.ALL: GOAL_ALL_PERCENT,
}
NOTES: Final = (
    "One thread for arithmetic, gloo, two ranks. Looking: processor time of the training thread inside our observers, "
    "the mean of a block's steps; the three modes take turns in the same processes. Off, nothing of them is called.",
    "step: processor time of the training thread in a step that is not looked at, without its waits. Sampled "
    "operations are so rare that a block may have none; what they take is in the table of megabytes.",
)


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of the measurement.

    Attributes:
        rounds: Blocks of each mode, for each model; at least two.
        budget_s: Seconds for each model after which no further round begins.
        warm_up: Steps at the start of a block.
        steps: Timed steps of a block.
        model: The trained model.
    """

    rounds: int
    budget_s: float
    warm_up: int
    steps: int
    model: Model


USUAL: Final = Extent(rounds=8, budget_s=60.0, warm_up=1, steps=5, model=LARGE)
QUICK: Final = Extent(rounds=2, budget_s=5.0, warm_up=1, steps=2, model=SMALL)


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one model, by mode.

    Attributes:
        step_ms: Processor time of the training thread in a step without checks.
        looked_ms: Processor time in observers.
        operations: Number of checked operations per step.
    """

    step_ms: Spread
    looked_ms: Mapping[NumericsMode, Spread]
    operations: Mapping[NumericsMode, float]

    def percent(self, mode: NumericsMode) -> float:
        """Return the cost of the checks, in percent of a step."""
        return 100 * self.looked_ms[mode].median / self.step_ms.median


def measure(extent: Extent) -> Section:
    """Train each model in each mode."""
    return _section({parallelism: _measure(parallelism, extent) for parallelism in Parallelism}, extent)


def _measure(parallelism: Parallelism, extent: Extent) -> Result:
    bare, rounds = list[float](), 0
    looked: dict[NumericsMode, list[float]] = {mode: [] for mode in NumericsMode}
    operations = dict.fromkeys(NumericsMode, 0)
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm") as directory:
        places = [Place(rank, Path(directory)) for rank in range(RANKS)]
        with forked(_serve, [(parallelism, extent.model, place) for place in places]) as ranks:
            deadline = time.monotonic() + extent.budget_s
            while rounds < 2 or (rounds < extent.rounds and time.monotonic() < deadline):
                rounds += 1
                for mode in NumericsMode:
                    for rank in ranks:
                        rank.send(CheckOrder(mode, extent.warm_up, extent.steps))
                    for answer in [rank.recv() for rank in ranks]:
                        looked[mode].append(answer.looked_ms)
                        operations[mode] += answer.operations
                        bare += answer.step_ms if mode is NumericsMode.OFF else ()
    steps = RANKS * rounds * (extent.warm_up + extent.steps)
    return Result(
        step_ms=Spread.of(bare),
        looked_ms={mode: Spread.of(of) for mode, of in looked.items()},
        operations={mode: count / steps for mode, count in operations.items()},
    )


def _serve(connection: Connection, parallelism: Parallelism, model: Model, place: Place) -> None:
    from benchmarks.steps.numerics_rank import serve  # only the forked processes import torch

    serve(connection, parallelism, model, place)


def _section(results: Mapping[Parallelism, Result], extent: Extent) -> Section:
    return Section(
        key="numerics_steps",
        title=f"Looking at values in a training step (gloo, {RANKS} ranks)",
        columns=["", "step, ms", "looked at a step", "looking, ms", "share, %"],
        rows=[
            [
                f"{parallelism.value}, {mode.value}",
                f"{result.step_ms:.0f}",
                f"{result.operations[mode]:g}",
                f"{result.looked_ms[mode]:.3f}",
                f"{result.percent(mode):.3f}",
            ]
            for parallelism, result in results.items()
            for mode in NumericsMode
        ],
        notes=NOTES,
        goals=[
            Goal(f"share of a step of {parallelism.value}, {mode.value}", result.percent(mode), GOALS[mode], "%")
            for parallelism, result in results.items()
            for mode in NumericsMode
        ],
        data={**asdict(extent), "models": {one.value: _data(result) for one, result in results.items()}},
    )


def _data(result: Result) -> dict[str, Any]:
    return {
        "step_ms": asdict(result.step_ms),
        "looked_ms": {mode.value: asdict(one) for mode, one in result.looked_ms.items()},
        "operations": {mode.value: count for mode, count in result.operations.items()},
    }
