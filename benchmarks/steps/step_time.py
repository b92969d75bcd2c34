"""What training steps lose: DDP and FSDP2 on gloo, two ranks that are switched on and off repeatedly."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean, median
from typing import Any, Final, TypeAlias

from benchmarks.forks import forked
from benchmarks.native_library import MISSING, library_folder, native_cache
from benchmarks.results.recorded import insist
from benchmarks.results.sections import Goal, Section
from benchmarks.results.spread import Spread
from benchmarks.steps.training import RANKS, Block, Model, Parallelism, Place, Steps, Switch, switches_with

GOAL_PERCENT: Final = 0.5
GOAL_NATIVE_PERCENT: Final = 0.05
"""By the cost of its calls: whole steps do not show so little."""

NOTES: Final = (
    "One thread for arithmetic; capture and tape, without a reader. Off, each kernel, and off again take turns "
    "in the same two processes. Each figure is the median over rounds of the difference between medians of a block's "
    "steps ± half of the range between the quartiles.",
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

USUAL: Final = Extent(rounds=15, budget_s=60.0, warm_up=2, steps=5, model=LARGE)
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
class Added:
    """What recording with one kernel adds to a step.

    Attributes:
        us: In microseconds.
        percent: The same, as a share of the step.
        processor_us: What it adds to the processor time of the training thread.
    """

    us: Spread
    percent: Spread
    processor_us: Spread


@dataclass(frozen=True, slots=True)
class Result:
    """One model's figures.

    Attributes:
        rounds: The measurements.
        collectives: Collectives in a step, on a rank.
        off_ms: Time of a step that is not recorded.
        added: What recording adds to it, by kernel.
        noise_percent: The difference between two kinds of blocks that are both not recorded.
    """

    rounds: Sequence[Round]
    collectives: float
    off_ms: Spread
    added: Mapping[Switch, Added]
    noise_percent: Spread

    @property
    def blur_percent(self) -> float:
        """What chance alone may show."""
        return self.noise_percent.blur(len(self.rounds))

    def expected_percent(self, call_us: float) -> float:
        """What recording should add to a step, given what it adds to each of its collectives."""
        return 100 * self.collectives * call_us / (1000 * self.off_ms.median)

    @property
    def is_decided(self) -> bool:
        """Whether blocks that should be alike differ so little that the goal is not lost in the noise."""
        return max(self.blur_percent, abs(self.noise_percent.median)) <= GOAL_PERCENT


CallCosts: TypeAlias = Mapping[Switch, float | None]
"""What each kernel adds to a call, in microseconds; None if it was not measured."""


def measure(extent: Extent, call_us: CallCosts) -> Section:
    """Train each model, recorded and not.

    Args:
        extent: How much is measured.
        call_us: What each kernel adds to one collective of a training step, as measured elsewhere.

    Raises:
        RuntimeError: A collective was not recorded, or one was that should not have been.
    """
    return _section({parallelism: _measure(parallelism, extent) for parallelism in Parallelism}, extent, call_us)


def _measure(parallelism: Parallelism, extent: Extent) -> Result:
    cache = native_cache()
    library = library_folder(cache) if cache is not None else None
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm") as directory:
        places = [Place(rank, Path(directory), library) for rank in range(RANKS)]
        with forked(_serve, [(parallelism, extent.model, place) for place in places]) as ranks:
            rounds, issued = [], 0
            deadline = time.monotonic() + extent.budget_s
            while len(rounds) < 2 or (len(rounds) < extent.rounds and time.monotonic() < deadline):
                answers = _take_turns(ranks, switches_with(library), len(rounds), extent)
                issued = _check(answers)
                rounds.append(_round(answers))
    return _result(rounds, issued / (extent.warm_up + extent.steps))


def _serve(connection: Connection, parallelism: Parallelism, model: Model, place: Place) -> None:
    # Only the forked processes need torch, and the one they are forked from has it already.
    from benchmarks.steps.training_rank import serve

    serve(connection, parallelism, model, place)


def _take_turns(
    ranks: Sequence[Connection], switches: list[Switch], turn: int, extent: Extent
) -> dict[Switch, list[Steps]]:
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
            insist(block.issued if switch.is_recorded else 0, block.recorded, "collectives were recorded")
    return answers[Switch.OFF][0].issued


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
        added={switch: _added(walls, processors, switch) for switch in walls[0] if switch.is_recorded},
        noise_percent=Spread.of([100 * (wall[Switch.OFF_AGAIN] / wall[Switch.OFF] - 1) for wall in walls]),
    )


def _added(
    walls: Sequence[Mapping[Switch, float]], processors: Sequence[Mapping[Switch, float]], switch: Switch
) -> Added:
    return Added(
        us=Spread.of([1000 * (wall[switch] - wall[Switch.OFF]) for wall in walls]),
        percent=Spread.of([100 * (wall[switch] / wall[Switch.OFF] - 1) for wall in walls]),
        processor_us=Spread.of([1000 * (used[switch] - used[Switch.OFF]) for used in processors]),
    )


def _section(results: Mapping[Parallelism, Result], extent: Extent, call_us: CallCosts) -> Section:
    notes = [_doubt(parallelism) for parallelism, result in results.items() if not result.is_decided]
    if not all(Switch.NATIVE in result.added for result in results.values()):
        notes.append(MISSING)
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
        rows=[
            _row(parallelism, kernel, result, call_us[kernel])
            for parallelism, result in results.items()
            for kernel in result.added
        ],
        notes=[*NOTES, *notes],
        goals=[
            goal
            for parallelism, result in results.items()
            for kernel in result.added
            for goal in _goals(parallelism, kernel, result, call_us[kernel])
        ],
        data={
            **asdict(extent),
            "call_us": {kernel.value: us for kernel, us in call_us.items()},
            "models": {parallelism.value: _data(result, call_us) for parallelism, result in results.items()},
        },
    )


def _goals(parallelism: Parallelism, kernel: Switch, result: Result, call_us: float | None) -> list[Goal]:
    text = f"{kernel.value}, added to a step of {parallelism.value}"
    percent = result.added[kernel].percent.median
    goals = [Goal(text, percent, GOAL_PERCENT, "%", is_decided=result.is_decided)]
    if call_us is not None:
        limit = GOAL_NATIVE_PERCENT if kernel is Switch.NATIVE else GOAL_PERCENT
        goals.append(Goal(f"{text}, expected of its calls", result.expected_percent(call_us), limit, "%"))
    return goals


def _doubt(parallelism: Parallelism) -> str:
    return f"The machine is too busy to resolve {GOAL_PERCENT} % of a step of {parallelism.value}: try when it is idle."


def _row(parallelism: Parallelism, kernel: Switch, result: Result, call_us: float | None) -> list[str]:
    added = result.added[kernel]
    return [
        f"{parallelism.value}, {kernel.value}",
        str(result.off_ms),
        f"{added.us:.0f}",
        f"{added.percent:.2f}",
        f"{result.noise_percent:.2f}",
        f"{added.processor_us:.0f}",
        f"{result.collectives:g}",
        f"{result.expected_percent(call_us):.3f}" if call_us is not None else "",
    ]


def _data(result: Result, call_us: CallCosts) -> dict[str, Any]:
    return {
        "collectives_per_step": result.collectives,
        "off_ms": asdict(result.off_ms),
        "noise_percent": asdict(result.noise_percent),
        "blur_percent": result.blur_percent,
        "kernels": {
            kernel.value: {
                **asdict(added),
                "expected_percent": result.expected_percent(us) if (us := call_us[kernel]) is not None else None,
            }
            for kernel, added in result.added.items()
        },
        "rounds_ms": [{switch.value: of for switch, of in one.wall_ms.items()} for one in result.rounds],
        "rounds_processor_ms": [{switch.value: of for switch, of in one.processor_ms.items()} for one in result.rounds],
    }
