"""Measures the slowdown of training steps: DDP and FSDP2 on gloo, with two ranks that switch recording on and off."""

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
from benchmarks.results.recorded import require_equal
from benchmarks.results.sections import Goal, Section
from benchmarks.results.spread import Spread
from benchmarks.steps.training import RANKS, Block, Model, Parallelism, Place, Steps, Switch, switches_with

GOAL_PERCENT: Final = 0.5
GOAL_NATIVE_PERCENT: Final = 0.05
"""Maximum cost in percent of a step, computed from the cost of calls: the duration of whole steps varies by more."""

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
    """The extent of the measurement.

    Attributes:
        rounds: Rounds for each model, at least two; in each, one block of every kind runs.
        budget_s: Seconds for each model after which no further round begins: others may need the machine too.
        warm_up: Steps at the start of a block: for example, reduce ops are read in the first 16 calls of a call site.
        steps: Timed steps per block.
        model: The trained model.
    """

    rounds: int
    budget_s: float
    warm_up: int
    steps: int
    model: Model


# 19 million parameters, and torch's default bucket size.
LARGE: Final = Model(layers=6, width=512, heads=8, sequences=4, tokens=128, bucket_mb=25)
# Buckets smaller than half a layer: many collectives with little arithmetic.
SMALL: Final = Model(layers=4, width=192, heads=4, sequences=4, tokens=64, bucket_mb=0.8)

USUAL: Final = Extent(rounds=15, budget_s=60.0, warm_up=2, steps=5, model=LARGE)
QUICK: Final = Extent(rounds=2, budget_s=5.0, warm_up=1, steps=2, model=SMALL)


@dataclass(frozen=True, slots=True)
class Round:
    """One block of every kind, one after the other: medians over steps, means over both ranks.

    Attributes:
        wall_ms: Duration of a step, by switch.
        processor_ms: Processor time of the training thread per step, by switch.
    """

    wall_ms: Mapping[Switch, float]
    processor_ms: Mapping[Switch, float]


@dataclass(frozen=True, slots=True)
class Added:
    """The time that recording with one kernel adds to a step.

    Attributes:
        us: Added time in microseconds.
        percent: Added time in percent of the step.
        processor_us: Added processor time of the training thread, in microseconds.
    """

    us: Spread
    percent: Spread
    processor_us: Spread


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one model.

    Attributes:
        rounds: The measurements.
        collectives: Number of collectives per step and rank.
        off_ms: Duration of an unrecorded step.
        added: Time added by recording, by kernel.
        noise_percent: Difference between two kinds of unrecorded blocks.
    """

    rounds: Sequence[Round]
    collectives: float
    off_ms: Spread
    added: Mapping[Switch, Added]
    noise_percent: Spread

    @property
    def blur_percent(self) -> float:
        """Return the difference, in percent, that chance alone may cause."""
        return self.noise_percent.blur(len(self.rounds))

    def expected_percent(self, call_us: float) -> float:
        """Return the expected cost in percent of a step, from the cost per collective."""
        return 100 * self.collectives * call_us / (1000 * self.off_ms.median)

    @property
    def is_decided(self) -> bool:
        """Return whether the noise between equal blocks is small compared with the goal."""
        return max(self.blur_percent, abs(self.noise_percent.median)) <= GOAL_PERCENT


CallCosts: TypeAlias = Mapping[Switch, float | None]
"""Microseconds that each kernel adds to a call; None if not measured."""


def measure(extent: Extent, call_us: CallCosts) -> Section:
    """Train each model with and without recording.

    Args:
        extent: The extent of the measurement.
        call_us: Microseconds that each kernel adds to a collective of a training step, from another benchmark.

    Raises:
        RuntimeError: A collective was not recorded, or was recorded while recording was off.
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
    # Only the forked processes need torch, and the process that they are forked from has imported it.
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
    """Compare tapes with the backend's count; return the number of collectives that a rank has issued in a block."""
    for switch, blocks in answers.items():
        for block in blocks:
            require_equal(block.issued if switch.is_recorded else 0, block.recorded, "collectives were recorded")
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
