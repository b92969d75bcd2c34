"""Measures the cost of a call with more ranks in the group and more tensors in the call. It must not grow unbounded.

A Python kernel receives every tensor as an object, so a call with 512 tensors costs more even if the kernel is empty.
So the figure is the cost of our kernel above an empty kernel in the same round.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.calls.call_timers import CallTimer, call_timers, take_turns
from benchmarks.calls.orders import WORLD_SIZE, Calls, Conditions, Order, Timing, Variant
from benchmarks.calls.size_names import ALL_GATHER, ALL_REDUCE, FIRST_CALL, NEW_GROUP, TENSORS, coalesced
from benchmarks.native_library import library_folder, native_cache
from benchmarks.results.recorded import operations_on_tapes, require_equal
from benchmarks.results.sections import Goal, Section
from benchmarks.results.spread import Spread

VARIANTS: Final = (Variant.BARE, Variant.EMPTY_KERNEL, Variant.PYTHON, Variant.NATIVE)
WORLDS: Final = (8, 512, 8192)
GOAL_RATIO: Final = 2.0
"""Bound for eight times the tensors or a thousand times the ranks; a small difference of large figures is inexact."""

NOTES: Final = (
    "`bare` is the call itself; what is added is the median of rounds ± half of the range between the quartiles. An "
    "empty kernel is handed all tensors of a call as Python objects too, so the last column is what we are to blame "
    "for: at most 64 tensors are looked at, and at most 8 described.",
    "Each of a new shape: no call is like one before, so that each finds out and writes down all there is to know; "
    "otherwise that happens once for each place in the code. new_group: over all ranks, ended at once.",
)


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of the measurement.

    Attributes:
        rounds: Rounds of each call and size.
        calls: Timed calls of `all_reduce` per round, after half as many warm-up calls.
        lists: The same for calls with many tensors.
        new_shapes: The same for calls with a new shape each; our tables hold a few thousand.
        new_groups: The same for groups; with 8,192 ranks our dictionary holds a hundred.
    """

    rounds: int
    calls: int
    lists: int
    new_shapes: int
    new_groups: int

    def order(self, call: str) -> Order:
        """Return the order for one round of a call."""
        special = {ALL_REDUCE: self.calls, FIRST_CALL: self.new_shapes, NEW_GROUP: self.new_groups}
        calls = special.get(call, self.lists)
        return Order(call, calls // 2, calls)


USUAL: Final = Extent(rounds=15, calls=1_000, lists=200, new_shapes=60, new_groups=2)
QUICK: Final = Extent(rounds=2, calls=20, lists=10, new_shapes=4, new_groups=2)


@dataclass(frozen=True, slots=True)
class Size:
    """A row: a call in a world of some size.

    Attributes:
        call: Name of the call in `sizes`.
        world_size: Ranks of the default group.
    """

    call: str
    world_size: int

    @property
    def name(self) -> str:
        """Name in the report."""
        return f"{self.call}, {self.world_size:,} ranks"


@dataclass(frozen=True, slots=True)
class Cost:
    """The figures of a row, in microseconds per call.

    Attributes:
        bare: Cost of the call itself.
        empty_kernel: Cost added by an empty kernel.
        python: Cost added by the Python kernel.
        native: Cost added by the native kernel; None without the library.
        above_empty: Cost of the Python kernel above the empty kernel.
    """

    bare: Spread
    empty_kernel: Spread
    python: Spread
    native: Spread | None
    above_empty: Spread

    @classmethod
    def of(cls, timings: Mapping[Variant, Sequence[Timing]]) -> Cost:
        """Return the figures from the rounds of the variants."""
        rounds = {variant: [timing.caller for timing in of] for variant, of in timings.items()}
        bare, empty, python = rounds[Variant.BARE], rounds[Variant.EMPTY_KERNEL], rounds[Variant.PYTHON]
        native = _difference(rounds[Variant.NATIVE], bare) if Variant.NATIVE in rounds else None
        return cls(
            Spread.of(bare), _difference(empty, bare), _difference(python, bare), native, _difference(python, empty)
        )


def measure(extent: Extent) -> Section:
    """Time calls of all sizes in worlds of all sizes.

    Raises:
        RuntimeError: A call was not recorded.
    """
    timings: dict[Size, dict[Variant, list[Timing]]] = {}
    for world_size in sorted({*WORLDS, *TENSORS}):
        timings |= _measure_world(world_size, extent)
    return _section(timings, extent)


def _measure_world(world_size: int, extent: Extent) -> dict[Size, dict[Variant, list[Timing]]]:
    cache = native_cache()
    library = library_folder(cache) if cache is not None else None
    variants = [variant for variant in VARIANTS if library is not None or variant is not Variant.NATIVE]
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm") as directory:
        conditions = Conditions(Path(directory), "", library, world_size=world_size, calls=Calls.OF_ALL_SIZES)
        with call_timers(variants, conditions) as timers:
            timings = {size: take_turns(timers, extent.order(size.call), extent.rounds) for size in _sizes(world_size)}
            for variant in variants[2:]:
                found = operations_on_tapes(conditions.tapes_of(variant))
                require_equal([_collectives(timers[variant])], found, "calls were recorded")
    return timings


def _sizes(world_size: int) -> list[Size]:
    calls = [ALL_REDUCE, FIRST_CALL, NEW_GROUP] if world_size in WORLDS else []
    calls += [ALL_GATHER] if world_size in TENSORS else []
    calls += [coalesced(tensors) for tensors in TENSORS] if world_size == WORLD_SIZE else []
    return [Size(call, world_size) for call in calls]


def _collectives(timer: CallTimer) -> int:
    return timer.calls.total() - timer.calls[NEW_GROUP]


def _difference(with_it: Sequence[float], without: Sequence[float]) -> Spread:
    return Spread.of([one - other for one, other in zip(with_it, without, strict=True)])


def _section(timings: Mapping[Size, Mapping[Variant, Sequence[Timing]]], extent: Extent) -> Section:
    costs = {size: Cost.of(of) for size, of in sorted(timings.items(), key=lambda item: _place(item[0]))}
    return Section(
        key="growth",
        title="Added to a call, in µs, against its size (backend `fake`)",
        columns=[
            "",
            Variant.BARE.value,
            Variant.EMPTY_KERNEL.value,
            "Python kernel",
            "native kernel",
            "Python - empty",
        ],
        rows=[
            [
                size.name,
                str(cost.bare),
                str(cost.empty_kernel),
                str(cost.python),
                str(cost.native or ""),
                str(cost.above_empty),
            ]
            for size, cost in costs.items()
        ],
        notes=NOTES,
        goals=[
            _goal(
                "all_reduce with 8,192 ranks against 8",
                costs,
                extent.rounds,
                Size(ALL_REDUCE, 8192),
                Size(ALL_REDUCE, 8),
            ),
            _goal(
                "all_gather of 512 tensors against 64",
                costs,
                extent.rounds,
                Size(ALL_GATHER, 512),
                Size(ALL_GATHER, 64),
            ),
            _goal(
                "all_reduce_coalesced of 512 tensors against 64",
                costs,
                extent.rounds,
                Size(coalesced(512), WORLD_SIZE),
                Size(coalesced(64), WORLD_SIZE),
            ),
        ],
        data={"unit": "µs per call", **asdict(extent), "sizes": _data(timings, costs)},
    )


def _place(size: Size) -> tuple[int, int]:
    """Return the sort key of a row: by call, then by size."""
    calls = [ALL_REDUCE, FIRST_CALL, NEW_GROUP, ALL_GATHER, *(coalesced(tensors) for tensors in TENSORS)]
    return calls.index(size.call), size.world_size


def _goal(text: str, costs: Mapping[Size, Cost], rounds: int, large: Size, small: Size) -> Goal:
    spread = costs[small].above_empty
    ratio = costs[large].above_empty.median / spread.median
    is_decided = spread.blur(rounds) < spread.median  # else the divisor may be zero
    return Goal(f"Python kernel above an empty one: {text}", ratio, GOAL_RATIO, "times", is_decided)


def _data(timings: Mapping[Size, Mapping[Variant, Sequence[Timing]]], costs: Mapping[Size, Cost]) -> dict[str, Any]:
    return {
        size.name: {
            "call": size.call,
            "world_size": size.world_size,
            **asdict(costs[size]),
            "rounds": {variant.value: [timing.caller for timing in of] for variant, of in timings[size].items()},
        }
        for size in costs
    }
