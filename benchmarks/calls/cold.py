"""Measures the cost added to a call after a layer of a model, as in training, instead of after another call.

A call that is made ten thousand times in a row finds all its code and data in the processor's caches. In a training
step the model has run since the last call, so everything costs several times as much: torch's part, an empty kernel,
our kernels, and a wrapper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from benchmarks.calls.orders import Calls, Variant
from benchmarks.calls.per_call import added_by, as_ratio, share_of_naive
from benchmarks.calls.timed_calls import Extent, Timings, World, time_calls
from benchmarks.native_library import MISSING
from benchmarks.results.sections import Goal, Section

GOAL_US: Final = 10.0
CALLS: Final = ("all_reduce", "all_reduce, async + wait")
WORLD: Final = World("fake", "fake", 8, Calls.AFTER_A_LAYER)

NOTES: Final = (
    "A layer of a transformer, forward and backward, runs before each call and is not timed. Medians of a round's "
    "calls, then of rounds ± half of the range between the quartiles; variants as above.",
)

USUAL: Final = Extent(rounds=9, warm_up=10, operations=60)
QUICK: Final = Extent(rounds=2, warm_up=1, operations=3)


def measure(extent: Extent) -> Section:
    """Time calls in every variant.

    Raises:
        RuntimeError: A variant has not recorded or exported all operations.
    """
    timings, _ = time_calls(WORLD, extent, list(Variant), CALLS)
    return _section(timings, extent)


def added_us(section: Section, variant: Variant, call: str = CALLS[0]) -> float | None:
    """Return the microseconds that a variant adds to a call, from a section of `measure`; None if not measured."""
    of = section.data["collectives"][call].get(variant.value)
    return of["added"]["median"] if of is not None else None


def _section(timings: Timings, extent: Extent) -> Section:
    added = {name: added_by(of, "caller") for name, of in timings.items()}
    variants = list(timings[CALLS[0]])
    kernels = [variant for variant in (Variant.PYTHON, Variant.NATIVE) if variant in variants]
    return Section(
        key="cold",
        title="Added to a call after a layer of a model, in µs (backend `fake`, 8 ranks, 4 floats)",
        columns=["", *(variant.value for variant in variants), *(f"{kernel.value} / naive" for kernel in kernels)],
        rows=[
            [name, *map(str, of.values()), *(as_ratio(share_of_naive(of, kernel)) for kernel in kernels)]
            for name, of in added.items()
        ],
        notes=NOTES if Variant.NATIVE in variants else [*NOTES, MISSING],
        goals=_goals(timings),
        data={
            "unit": "µs per call",
            **asdict(extent),
            "collectives": {
                name: {
                    variant.value: {
                        "rounds": [one.caller for one in rounds],
                        "added": asdict(added[name][variant]),
                    }
                    for variant, rounds in of.items()
                }
                for name, of in timings.items()
            },
        },
    )


def _goals(timings: Timings) -> Sequence[Goal]:
    """Return the goals of the native kernel."""
    goals: list[Goal] = []
    for name, of in timings.items():
        if Variant.NATIVE in of:
            spread = added_by(of, "caller")[Variant.NATIVE]
            is_decided = spread.blur(len(of[Variant.NATIVE])) <= GOAL_US
            goals.append(
                Goal(f"native kernel, added to {name} after a layer", spread.median, GOAL_US, "µs", is_decided)
            )
    return goals
