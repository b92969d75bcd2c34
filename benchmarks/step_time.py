"""What training steps lose: DDP and FSDP2 on gloo, two ranks that are switched on and off repeatedly."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

from benchmarks.forks import forked
from benchmarks.recorded import insist
from benchmarks.sections import Goal, Section
from benchmarks.spread import Spread
from benchmarks.training import RANKS, Block, Model, Parallelism, Place, Steps, Switch

GOAL_PERCENT: Final = 0.5

NOTES: Final = (
    "One thread for arithmetic; capture and tape, without a reader. Off, on and off again take turns in the same two "
    "processes. Each figure is the median over rounds of the difference between medians of a block's steps ± half of "
    "the range between the quartiles.",
    "off again - off: two blocks that are both switched off, compared in the same way: what is smaller than this "
    "cannot be distinguished from zero. on the processor: what is added to the processor time of the training thread, "
    "which waits for the other rank do not blur. expected: a step's collectives times what an all_reduce after a "
    "layer of a model costs above, which noise of whole steps does not blur.",
)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured.

    Attributes:
        rounds: For each model, in each one block of every kind; at least two.
        budget_s: Seconds for each model after which no further round begins: others may need the machine too.
        warm_up: Steps at the start of a block: reduce ops, for one, are read anew on the first 16 calls of a place.
        steps: Timed steps of a block.
        model: The model that is trained.
    """

    rounds: int
    budget_s: float
    warm_up: int
    steps: int
    model: Model


# 19 million parameters, and torch's own size for a bucket.
LARGE: Final = Model(layers=6, width=512, heads=8, sequences=4, tokens=128, bucket_mb=25)
# Buckets of less than half a layer: many collectives for little arithmetic.
SMALL: Final = Model(layers=4, width=192, heads=4, sequences=4, tokens=64, bucket_mb=0.8)

USUAL: Final = Extent(rounds=15, budget_s=75.0, warm_up=2, steps=5, model=LARGE)
QUICK: Final = Extent(rounds=2, budget_s=5.0, warm_up=1, steps=2, model=SMALL)


@dataclass(frozen=True, slots=True)
class Round:
    """One block of every kind, one after the other; medians of their steps, the mean of both ranks.

    Attributes:
        wall_ms: A step, by how it was run.
        processor_ms: Processor time of the training thread in it.
    """

    wall_ms: Mapping[Switch, float]
    processor_ms: Mapping[Switch, float]


@dataclass(frozen=True, slots=True)
class Result:
    """One model's figures.

    Attributes:
        rounds: The measurements.
        collectives: Collectives in a step, on a rank.
        off_ms: Time of a step that is not recorded.
        added_us: What recording adds to it.
        added_percent: The same, as a share of it.
        noise_percent: The difference between two kinds of blocks that are both not recorded.
        processor_us: What recording adds to the processor time of the training thread.
    """

    rounds: Sequence[Round]
    collectives: float
    off_ms: Spread
    added_us: Spread
    added_percent: Spread
    noise_percent: Spread
    processor_us: Spread

    @property
    def blur_percent(self) -> float:
        """Twice the standard error of the median of `noise_percent`, if rounds are distributed normally."""
        deviation = (self.noise_percent.high - self.noise_percent.low) / 1.35
        return 2 * 1.25 * deviation / len(self.rounds) ** 0.5

    def expected_percent(self, call_us: float) -> float:
        """What recording should add to a step, given what it adds to each of its collectives."""
        return 100 * self.collectives * call_us / (1000 * self.off_ms.median)

    @property
    def is_decided(self) -> bool:
        """Whether blocks that should be alike differ so little that the goal is not lost in the noise."""
        return max(self.blur_percent, abs(self.noise_percent.median)) <= GOAL_PERCENT


def measure(extent: Extent, call_us: float) -> Section:
    """Train each model, recorded and not.

    Args:
        extent: How much is measured.
        call_us: What recording adds to one collective of a training step, as measured elsewhere.

    Raises:
        RuntimeError: A collective was not recorded, or one was that should not have been.
    """
    return _section({parallelism: _measure(parallelism, extent) for parallelism in Parallelism}, extent, call_us)


def _measure(parallelism: Parallelism, extent: Extent) -> Result:
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm") as directory:
        places = [Place(rank, Path(directory)) for rank in range(RANKS)]
        with forked(_serve, [(parallelism, extent.model, place) for place in places]) as ranks:
            rounds, issued = [], 0
            deadline = time.monotonic() + extent.budget_s
            while len(rounds) < 2 or (len(rounds) < extent.rounds and time.monotonic() < deadline):
                answers = _take_turns(ranks, len(rounds), extent)
                issued = _check(answers)
                rounds.append(_round(answers))
    return _result(rounds, issued / (extent.warm_up + extent.steps))


def _serve(connection: Connection, parallelism: Parallelism, model: Model, place: Place) -> None:
    # Only the forked processes need torch, and the one they are forked from has it already.
    from benchmarks.training_rank import serve

    serve(connection, parallelism, model, place)


def _take_turns(ranks: Sequence[Connection], turn: int, extent: Extent) -> dict[Switch, list[Steps]]:
    switches = list(Switch)
    first = turn % len(switches)
    answers = {}
    for switch in switches[first:] + switches[:first]:
        for rank in ranks:
            rank.send(Block(switch, extent.warm_up, extent.steps))
        answers[switch] = [rank.recv() for rank in ranks]
    return answers


def _check(answers: Mapping[Switch, Sequence[Steps]]) -> int:
    """Compare tapes with the backend's count; returns how many collectives a rank has issued in a block."""
    for switch, blocks in answers.items():
        for block in blocks:
            insist(block.issued if switch is Switch.ON else 0, block.recorded, "collectives were recorded")
    return answers[Switch.ON][0].issued


def _round(answers: Mapping[Switch, Sequence[Steps]]) -> Round:
    return Round(
        wall_ms={switch: mean(median(block.wall_ms) for block in of) for switch, of in answers.items()},
        processor_ms={switch: mean(median(block.processor_ms) for block in of) for switch, of in answers.items()},
    )


def _result(rounds: Sequence[Round], collectives: float) -> Result:
    walls = [one.wall_ms for one in rounds]
    processors = [one.processor_ms for one in rounds]
    return Result(
        rounds=rounds,
        collectives=collectives,
        off_ms=Spread.of([wall[Switch.OFF] for wall in walls]),
        added_us=Spread.of([1000 * (wall[Switch.ON] - wall[Switch.OFF]) for wall in walls]),
        added_percent=Spread.of([100 * (wall[Switch.ON] / wall[Switch.OFF] - 1) for wall in walls]),
        noise_percent=Spread.of([100 * (wall[Switch.OFF_AGAIN] / wall[Switch.OFF] - 1) for wall in walls]),
        processor_us=Spread.of([1000 * (used[Switch.ON] - used[Switch.OFF]) for used in processors]),
    )


def _section(results: Mapping[Parallelism, Result], extent: Extent, call_us: float) -> Section:
    return Section(
        key="step_time",
        title=f"Added to a training step (gloo, {RANKS} ranks)",
        columns=[
            "",
            "step, ms",
            "added, µs",
            "added, %",
            "off again - off, %",
            "on the processor, µs",
            "collectives a step",
            "expected, %",
        ],
        rows=[_row(parallelism, result, call_us) for parallelism, result in results.items()],
        notes=[*NOTES, *(_doubt(parallelism) for parallelism, result in results.items() if not result.is_decided)],
        goals=[goal for parallelism, result in results.items() for goal in _goals(parallelism, result, call_us)],
        data={
            **asdict(extent),
            "call_us": call_us,
            "models": {parallelism.value: _data(result, call_us) for parallelism, result in results.items()},
        },
    )


def _goals(parallelism: Parallelism, result: Result, call_us: float) -> list[Goal]:
    text = f"added to a step of {parallelism.value}"
    seen = Goal(text, result.added_percent.median, GOAL_PERCENT, "%", is_decided=result.is_decided)
    return [seen, Goal(f"{text}, expected of its calls", result.expected_percent(call_us), GOAL_PERCENT, "%")]


def _doubt(parallelism: Parallelism) -> str:
    return f"The machine is too busy to resolve {GOAL_PERCENT} % of a step of {parallelism.value}: try when it is idle."


def _row(parallelism: Parallelism, result: Result, call_us: float) -> list[str]:
    return [
        parallelism.value,
        str(result.off_ms),
        f"{result.added_us:.0f}",
        f"{result.added_percent:.2f}",
        f"{result.noise_percent:.2f}",
        f"{result.processor_us:.0f}",
        f"{result.collectives:g}",
        f"{result.expected_percent(call_us):.2f}",
    ]


def _data(result: Result, call_us: float) -> dict[str, Any]:
    spreads = ("off_ms", "added_us", "added_percent", "noise_percent", "processor_us")
    return {
        "collectives_per_step": result.collectives,
        "expected_percent": result.expected_percent(call_us),
        **{name: asdict(getattr(result, name)) for name in spreads},
        "blur_percent": result.blur_percent,
        "rounds_ms": [{switch.value: of for switch, of in one.wall_ms.items()} for one in result.rounds],
        "rounds_processor_ms": [{switch.value: of for switch, of in one.processor_ms.items()} for one in result.rounds],
    }
