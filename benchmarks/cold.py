"""What is added to a call that comes after a layer of a model, as in training, and not after another such call.

A call that is made ten thousand times in a row finds all its code and data in the processor's caches. In a training
step the model has run since the last call, so everything costs several times as much: torch's own part, an empty
kernel, ours, and a wrapper around it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from benchmarks.orders import Calls, Variant
from benchmarks.per_call import Extent, Timings, added_by, ours_to_naive, time_variants
from benchmarks.sections import Section

CALLS: Final = ("all_reduce", "all_reduce, async + wait")

NOTES: Final = (
    "A layer of a transformer, forward and backward, runs before each call and is not timed. Medians of a round's "
    "calls, then of rounds ± half of the range between the quartiles; variants as above.",
)

USUAL: Final = Extent(rounds=9, warm_up=10, calls=60)
QUICK: Final = Extent(rounds=2, warm_up=1, calls=3)


def measure(extent: Extent) -> Section:
    """Time calls in every variant.

    Raises:
        RuntimeError: Something that a variant should have recorded or exported is missing.
    """
    return _section(time_variants(extent, Calls.AFTER_A_LAYER, CALLS), extent)


def added_us(section: Section, call: str = CALLS[0]) -> float:
    """What we add to one such call, in microseconds, according to a section of `measure`."""
    return section.data["collectives"][call][Variant.OURS.value]["added"]["median"]


def _section(timings: Timings, extent: Extent) -> Section:
    added = {name: added_by(of, "caller") for name, of in timings.items()}
    return Section(
        key="cold",
        title="Added to a call after a layer of a model, in µs (backend `fake`, 8 ranks, 4 floats)",
        columns=["", *(variant.value for variant in Variant), "ours / naive"],
        rows=[[name, *map(str, of.values()), f"1/{1 / ours_to_naive(of):.1f}"] for name, of in added.items()],
        notes=NOTES,
        goals=[],
        data={
            "unit": "µs per call",
            **asdict(extent),
            "collectives": {
                name: {
                    variant.value: {
                        "rounds": [one.caller for one in of[variant]],
                        "added": asdict(added[name][variant]),
                    }
                    for variant in Variant
                }
                for name, of in timings.items()
            },
        },
    )
