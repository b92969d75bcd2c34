"""Measures the cost added to each call by variants that take turns.

Each variant has its own process, because some leave traces behind: a batch processor's thread takes the GIL from the
next variant. All are forked from one process that has imported all modules, so they have the same modules and heap. The
garbage collector stays on, and skips objects from before the first call. The variants take turns (A B C, B C A, …),
so that a machine that becomes slower affects all of them. While one runs, the others are idle and have exported
everything. `stopwatch` subtracts the time used by other processes of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from benchmarks.calls.orders import Calls, Timing, Variant
from benchmarks.calls.timed_calls import Extent, World, time_calls
from benchmarks.native_library import MISSING
from benchmarks.results.sections import Goal, Section
from benchmarks.results.spread import Spread

GOAL_NATIVE_US: Final = 1.0
GOAL_NATIVE_RATIO: Final = 1 / 50
GOAL_PYTHON_US: Final = 11.0
GOAL_PYTHON_RATIO: Final = 1 / 6
MAIN: Final = "fake: all_reduce"
"""The call with goals for the Python kernel."""
BUSY_SHARE: Final = 0.05
WORLDS: Final = (
    World("fake", "fake", 8, Calls.USUAL),
    World("gloo", "gloo", 1, Calls.USUAL),
    World("gloo, 2 ranks", "gloo", 2, Calls.WITH_A_PEER),
)

NOTES: Final = (
    "What the caller loses, waits for the GIL included; `bare` is the call itself. Median of rounds ± half of the "
    "range between the quartiles. 4 floats; 8 ranks on `fake`, one on gloo, but for send and recv, whose peer is a "
    "bare process. Figures are for one operation, in send, recv and coalesced blocks too.",
    "empty kernel: a Python kernel in torch's dispatcher that only passes the call on; it is part of the Python "
    "kernel. Both kernels: capture and tape, without a reader; what reading costs stands below.",
    "naive: start_as_current_span with four attributes, batch processor with a queue that drops nothing, OTLP/gRPC to "
    "a process on this machine: the one that the ratio is taken to. no export: its exporter does nothing.",
)
BUSY: Final = "The machine was busy: others had the processor for {:.0%} of the time of the bare calls; it is left out."

USUAL: Final = Extent(rounds=15, warm_up=600, operations=1_000)
QUICK: Final = Extent(rounds=3, warm_up=16, operations=64)


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of a call, in microseconds.

    Attributes:
        timings: Rounds by variant.
        added: Cost that each variant adds to the bare call; for `BARE` the cost of the call.
        process: The same in processor time of the whole process.
        is_left_to_python: Whether the native kernel leaves the call to the Python kernel.
    """

    timings: Mapping[Variant, Sequence[Timing]]
    added: Mapping[Variant, Spread]
    process: Mapping[Variant, Spread]
    is_left_to_python: bool


def measure(extent: Extent) -> Section:
    """Time every call in every variant.

    Raises:
        RuntimeError: A variant has not recorded or exported all operations.
    """
    rows: dict[str, Row] = {}
    for world in WORLDS:
        timings, left = time_calls(world, extent, list(Variant))
        rows |= {f"{world.name}: {name}": _row(of, name in left) for name, of in timings.items()}
    return _section(rows, extent)


def _row(timings: Mapping[Variant, Sequence[Timing]], is_left_to_python: bool) -> Row:
    return Row(timings, added_by(timings, "caller"), added_by(timings, "process"), is_left_to_python)


def _section(rows: Mapping[str, Row], extent: Extent) -> Section:
    variants = list(rows[MAIN].timings)
    kernels = [variant for variant in (Variant.PYTHON, Variant.NATIVE) if variant in variants]
    return Section(
        key="per_call",
        title="Added to an operation, in µs",
        columns=["", *(variant.value for variant in variants), *(f"{kernel.value} / naive" for kernel in kernels)],
        rows=[
            [name, *map(str, row.added.values()), *(as_ratio(share_of_naive(row.added, kernel)) for kernel in kernels)]
            for name, row in rows.items()
        ],
        notes=[*NOTES, *_notes(rows)],
        goals=_goals(rows),
        data={"unit": "µs per operation", **asdict(extent), "collectives": _data(rows, kernels)},
    )


def added_by(timings: Mapping[Variant, Sequence[Timing]], clock: str) -> dict[Variant, Spread]:
    """Return the cost that each variant adds to the bare call of the same round; for `BARE` the cost of the call."""
    rounds = {variant: [getattr(timing, clock) for timing in of] for variant, of in timings.items()}
    bare = rounds.pop(Variant.BARE)
    added = {variant: [cost - base for cost, base in zip(of, bare, strict=True)] for variant, of in rounds.items()}
    return {variant: Spread.of(of) for variant, of in {Variant.BARE: bare, **added}.items()}


def share_of_naive(added: Mapping[Variant, Spread], kernel: Variant) -> float:
    """Return the cost added by a kernel as a share of the cost added by the naive wrapper."""
    return added[kernel].median / added[Variant.NAIVE].median


def as_ratio(share: float) -> str:
    """Return a share as a cell such as `1/4.2`; a negative measurement has none."""
    return f"1/{1 / share:.1f}" if share > 0 else "0"


def _goals(rows: Mapping[str, Row]) -> list[Goal]:
    """Return the goals: of the Python kernel for one call, of the native kernel for the worst of all calls."""
    main = rows[MAIN].added
    goals = [
        Goal(f"Python kernel, added to {MAIN}", main[Variant.PYTHON].median, GOAL_PYTHON_US, "µs"),
        Goal(
            f"Python kernel / naive, {MAIN}",
            share_of_naive(main, Variant.PYTHON),
            GOAL_PYTHON_RATIO,
            "",
        ),
    ]
    if Variant.NATIVE not in main:
        return goals
    for world in WORLDS:
        of = {name: row for name, row in rows.items() if name.startswith(f"{world.name}:")}
        name, row = max(of.items(), key=lambda item: item[1].added[Variant.NATIVE].median)
        blur = row.added[Variant.NATIVE].blur(len(row.timings[Variant.NATIVE]))
        goals.append(
            Goal(
                f"native kernel, most that is added ({name})",
                row.added[Variant.NATIVE].median,
                GOAL_NATIVE_US,
                "µs",
                is_decided=blur <= GOAL_NATIVE_US,
            )
        )
        name, row = max(of.items(), key=lambda item: share_of_naive(item[1].added, Variant.NATIVE))
        share = share_of_naive(row.added, Variant.NATIVE)
        blur = row.added[Variant.NATIVE].blur(len(row.timings[Variant.NATIVE])) / row.added[Variant.NAIVE].median
        goals.append(
            Goal(
                f"native kernel / naive, largest ({name})",
                share,
                GOAL_NATIVE_RATIO,
                "",
                is_decided=abs(blur) <= GOAL_NATIVE_RATIO,
            )
        )
    return goals


def _notes(rows: Mapping[str, Row]) -> list[str]:
    main = rows[MAIN]
    notes = [
        f"Processor time that the whole process spends on one {MAIN}, export included, above the bare call's: "
        f"Python kernel {main.process[Variant.PYTHON]} µs, naive {main.process[Variant.NAIVE]} µs, "
        f"{as_ratio(share_of_naive(main.process, Variant.PYTHON))}."
    ]
    if Variant.NATIVE not in main.timings:
        notes.append(MISSING)
    if left := [name for name, row in rows.items() if row.is_left_to_python]:
        notes.append(f"The native kernel leaves to the kernel in Python: {'; '.join(left)}.")
    waited = _share_waited([timing for row in rows.values() for timing in row.timings[Variant.BARE]])
    if waited > BUSY_SHARE:
        notes.append(BUSY.format(waited))
    return notes


def _share_waited(timings: Sequence[Timing]) -> float:
    waited = sum(timing.waited for timing in timings)
    return waited / (waited + sum(timing.caller for timing in timings))


def _data(rows: Mapping[str, Row], kernels: Sequence[Variant]) -> dict[str, Any]:
    return {
        name: {
            "is_left_to_python": row.is_left_to_python,
            "to_naive": {kernel.value: share_of_naive(row.added, kernel) for kernel in kernels},
            "to_naive_process": {kernel.value: share_of_naive(row.process, kernel) for kernel in kernels},
            "variants": {
                variant.value: {
                    "rounds": [timing.caller for timing in rounds],
                    "rounds_process": [timing.process for timing in rounds],
                    "rounds_waited": [timing.waited for timing in rounds],
                    "added": asdict(row.added[variant]),
                    "added_process": asdict(row.process[variant]),
                }
                for variant, rounds in row.timings.items()
            },
        }
        for name, row in rows.items()
    }
