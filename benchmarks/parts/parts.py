"""Measures the parts of recording that record no operations: labels, parts of steps, checkpoints, RPC.

The duration of whole steps varies by more than their cost. So each kind of event is timed alone, in torch's code. The
cost per step is the cost after a layer of a model, times the number of events in a step of the models of `step_time`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

from benchmarks.forks import forked
from benchmarks.native_library import MISSING, library_folder, native_cache
from benchmarks.parts.counts import events_of_a_step
from benchmarks.parts.orders import Event, PartTimes, PartTurn
from benchmarks.results.sections import Goal, Section
from benchmarks.results.spread import Spread
from benchmarks.steps.training import Model, Parallelism, Switch, switches_with

GOAL_PERCENT: Final = 0.1
"""Maximum cost in percent of a whole step, with the native kernel and including the calls."""

NOTES: Final = (
    "Processor time of the thread; of an RPC, of the whole process, which calls itself. In a row: the least of many. "
    "After a layer: medians of a block, each event after a layer of a transformer, forward and backward, which is not "
    "timed. Off, each kernel, and off again take turns; medians of rounds ± half of the range between the quartiles of "
    "the difference to off. Timeouts are read when a group is created, dimensions of meshes when it is made: no call "
    "and no step has anything of them. Machine, job identity and rescue take no time in a rank.",
)

Rounds: TypeAlias = list[dict[Switch, Mapping[Event, PartTimes]]]


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of the measurement.

    Attributes:
        rounds: Number of rounds; in each, every switch has a turn.
        budget_s: Seconds after which no further round begins, for all events and for remote calls each.
        in_a_row: Number of consecutive events.
        after_a_layer: Number of events that each follow a layer.
    """

    rounds: int
    budget_s: float
    in_a_row: int
    after_a_layer: int


USUAL: Final = Extent(rounds=12, budget_s=60.0, in_a_row=400, after_a_layer=20)
QUICK: Final = Extent(rounds=2, budget_s=5.0, in_a_row=40, after_a_layer=2)


@dataclass(frozen=True, slots=True)
class Whole:
    """The composition of a step of one model.

    Attributes:
        step_ms: Processor time of the training thread, in milliseconds; waits for other ranks are left out.
        collectives: Number of collectives.
        call_us: Microseconds that each kernel adds to a collective.
    """

    step_ms: float
    collectives: float
    call_us: Mapping[Switch, float | None]


def measure(extent: Extent, model: Model, steps: Mapping[Parallelism, Whole]) -> Section:
    """Time the events, recorded and not.

    Args:
        extent: The extent of the measurement.
        model: The model of the steps.
        steps: The composition of steps; empty if not measured.
    """
    cache = native_cache()
    library = library_folder(cache) if cache is not None else None
    rounds = [_measure(extent, library, is_rpc) for is_rpc in (False, True)]
    return _section(rounds, extent, model, steps, [] if library is not None else [MISSING])


def _measure(extent: Extent, library: Path | None, is_rpc: bool) -> Rounds:
    switches = switches_with(library)
    rounds: Rounds = []
    with ExitStack() as stack:
        tapes = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm")))
        [rank] = stack.enter_context(forked(_serve, [(tapes, library, is_rpc)]))
        deadline = time.monotonic() + extent.budget_s
        while len(rounds) < 2 or (len(rounds) < extent.rounds and time.monotonic() < deadline):
            first = len(rounds) % len(switches)
            answers: dict[Switch, Mapping[Event, PartTimes]] = {}
            for switch in switches[first:] + switches[:first]:
                rank.send(PartTurn(switch, extent.in_a_row, extent.after_a_layer))
                answers[switch] = rank.recv()
            rounds.append(answers)
    return rounds


def _serve(connection: Connection, tapes: Path, library: Path | None, is_rpc: bool) -> None:
    # Only the forked processes need torch, and the process that they are forked from has imported it.
    from benchmarks.parts.rank import serve

    serve(connection, tapes, library, is_rpc)


@dataclass(frozen=True, slots=True)
class Added:
    """The microseconds that one switch adds to an event.

    Attributes:
        in_a_row: After other events of its kind.
        after_a_layer: After a layer of a model; None if not timed.
    """

    in_a_row: Spread
    after_a_layer: Spread | None


def _added(rounds: Rounds, switch: Switch, event: Event) -> Added:
    pairs = [(one[switch][event], one[Switch.OFF][event]) for one in rounds]
    later = [
        on.after_a_layer - off.after_a_layer
        for on, off in pairs
        if on.after_a_layer is not None and off.after_a_layer is not None
    ]
    return Added(Spread.of([on.in_a_row - off.in_a_row for on, off in pairs]), Spread.of(later) if later else None)


def _section(
    rounds: Sequence[Rounds], extent: Extent, model: Model, steps: Mapping[Parallelism, Whole], notes: Sequence[str]
) -> Section:
    kernels = [switch for switch in rounds[0][0] if switch.is_recorded]
    events = {event: of for of in rounds for event in of[0][Switch.OFF]}
    added = {
        event: {switch: _added(of, switch, event) for switch in of[0] if switch is not Switch.OFF}
        for event, of in events.items()
    }
    rows = [
        _row(event, of, Spread.of([one[Switch.OFF][event].in_a_row for one in events[event]]))
        for event, of in added.items()
    ]
    shares = _shares(added, kernels, model, steps)
    return Section(
        key="parts",
        title="Added to events of a training that are no operations, in µs of processor time",
        columns=[
            "",
            "bare",
            *(f"{kernel.value}{how}" for kernel in kernels for how in ("", ", after a layer")),
            "off again",
        ],
        rows=rows,
        notes=[*NOTES, *notes],
        goals=[
            Goal(f"{kernel.value}, a step of {parallelism.value}, calls and parts", percent, GOAL_PERCENT, "%")
            for (parallelism, kernel), percent in shares.items()
            if kernel is Switch.NATIVE
        ],
        data={
            "unit": "µs",
            **asdict(extent),
            "events": {
                event.name.lower(): {switch.value: asdict(one) for switch, one in of.items()}
                for event, of in added.items()
            },
            "percent_of_a_step": {
                f"{parallelism.value}, {kernel.value}": percent for (parallelism, kernel), percent in shares.items()
            },
        },
    )


def _row(event: Event, of: Mapping[Switch, Added], bare: Spread) -> list[str]:
    cells: list[str] = []
    for switch, one in of.items():
        later = "" if one.after_a_layer is None else f"{one.after_a_layer:.1f}"
        cells += [f"{one.in_a_row:.1f}", *([later] if switch.is_recorded else [])]
    return [event.value, f"{bare:.1f}", *cells]


def _shares(
    added: Mapping[Event, Mapping[Switch, Added]],
    kernels: Sequence[Switch],
    model: Model,
    steps: Mapping[Parallelism, Whole],
) -> dict[tuple[Parallelism, Switch], float]:
    """Return the cost of a step's collectives and of its other events, in percent of the step."""
    found: dict[tuple[Parallelism, Switch], float] = {}
    for parallelism, whole in steps.items():
        counts = events_of_a_step(parallelism, model)
        for kernel in kernels:
            call_us = whole.call_us.get(kernel)
            if call_us is None:
                continue
            own = {event: added[event][kernel].after_a_layer for event in counts}
            us = whole.collectives * call_us + sum(
                counts[event] * max(one.median, 0.0) for event, one in own.items() if one is not None
            )
            found[parallelism, kernel] = 100 * us / (1000 * whole.step_ms)
    return found


def whole_steps(section: Section, call_us: Mapping[Switch, float | None]) -> dict[Parallelism, Whole]:
    """Return the composition of steps, as measured by the section `step_time`."""
    models: Mapping[str, Any] = section.data["models"]
    return {
        parallelism: Whole(
            median(one[Switch.OFF.value] for one in of["rounds_processor_ms"]), of["collectives_per_step"], call_us
        )
        for parallelism in Parallelism
        if (of := models.get(parallelism.value)) is not None
    }
