"""What is added to a call that comes after a layer of a model, as in training, and not after another such call.

A call that is made ten thousand times in a row finds all its code and data in the processor's caches. In a training
step the model has been there since the last one, so everything costs several times as much: torch's own part, an empty
kernel, ours, and a wrapper around it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.call_timers import call_timers, take_turns
from benchmarks.orders import Calls, Conditions, Order, Timing, Variant
from benchmarks.recorded import collectives_on_tapes, insist
from benchmarks.sections import Section
from benchmarks.span_sink import SpanSink
from benchmarks.spread import Spread

CALLS: Final = ("all_reduce", "all_reduce, async + wait")

NOTES: Final = (
    "A layer of a transformer, forward and backward, runs before each call and is not timed. Medians of a round's "
    "calls, then of rounds ± half of the range between the quartiles; variants as above.",
)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured.

    Attributes:
        rounds: For each collective.
        warm_up: Calls before each round.
        calls: Timed calls in each round.
    """

    rounds: int
    warm_up: int
    calls: int


USUAL: Final = Extent(rounds=9, warm_up=10, calls=60)
QUICK: Final = Extent(rounds=2, warm_up=1, calls=3)


def measure(extent: Extent) -> Section:
    """Time calls in every variant.

    Raises:
        RuntimeError: What a variant should have recorded or exported is not there.
    """
    with ExitStack() as stack:
        tapes = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm")))
        sink = stack.enter_context(SpanSink())
        conditions = Conditions(tapes, sink.endpoint, calls=Calls.AFTER_A_LAYER)
        timers = stack.enter_context(call_timers(list(Variant), conditions))
        timings = {name: take_turns(timers, Order(name, extent.warm_up, extent.calls), extent.rounds) for name in CALLS}
        insist(timers[Variant.NAIVE].calls.total(), sink.received(), "spans were exported")
        insist([timers[Variant.OURS].calls.total()], collectives_on_tapes(tapes), "calls were recorded")
    return _section(timings, extent)


def added_us(section: Section, call: str = CALLS[0]) -> float:
    """What we add to one such call, in microseconds, as a section of `measure` says."""
    return section.data["collectives"][call][Variant.OURS.value]["added"]["median"]


def _section(timings: Mapping[str, Mapping[Variant, Sequence[Timing]]], extent: Extent) -> Section:
    added = {name: {variant: _added(of, variant) for variant in Variant} for name, of in timings.items()}
    return Section(
        key="cold",
        title="Added to a call after a layer of a model, in µs (backend `fake`, 8 ranks, 4 floats)",
        columns=["", *(variant.value for variant in Variant), "ours / naive"],
        rows=[[name, *map(str, of.values()), f"1/{_ratio(of):.1f}"] for name, of in added.items()],
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


def _added(timings: Mapping[Variant, Sequence[Timing]], variant: Variant) -> Spread:
    """What a variant adds to the bare call of the same round; for `BARE` the call itself."""
    bare = timings[Variant.BARE]
    if variant is Variant.BARE:
        return Spread.of([one.caller for one in bare])
    return Spread.of([one.caller - base.caller for one, base in zip(timings[variant], bare, strict=True)])


def _ratio(added: Mapping[Variant, Spread]) -> float:
    return added[Variant.NAIVE].median / added[Variant.OURS].median
