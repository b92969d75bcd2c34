"""Times calls in a world of any backend, in every variant, and checks that they were recorded or exported."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from benchmarks.calls.call_timers import call_timers, take_turns
from benchmarks.calls.orders import Calls, Conditions, Kind, Order, Timing, Variant
from benchmarks.native_library import library_folder, native_cache
from benchmarks.receivers.span_sink import SpanSink
from benchmarks.results.recorded import OperationsOnTapes, require_equal

Timings: TypeAlias = Mapping[str, Mapping[Variant, Sequence[Timing]]]
"""Rounds of each call, by variant."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a measurement.

    Attributes:
        rounds: Rounds of each call.
        warm_up: Operations before each round; from 512 on, the batch processor is busy when the round begins.
        operations: Timed operations in each round.
    """

    rounds: int
    warm_up: int
    operations: int

    def order(self, name: str, kind: Kind) -> Order:
        """Return the order for one round of a call."""
        return Order(name, -(-self.warm_up // kind.operations), -(-self.operations // kind.operations))


@dataclass(frozen=True, slots=True)
class World:
    """A world, and the calls made in it.

    Attributes:
        name: Its name in the report.
        backend: Backend of the default group.
        size: Number of ranks.
        calls: The kind of calls.
    """

    name: str
    backend: str
    size: int
    calls: Calls


def time_calls(
    world: World, extent: Extent, variants: Sequence[Variant], names: Sequence[str] = ()
) -> tuple[Timings, Sequence[str]]:
    """Time calls in variants that take turns.

    Args:
        world: The world and its calls.
        extent: The extent of the measurement.
        variants: The variants; the native one is left out if the library cannot be built.
        names: Names of the calls to time; None for all.

    Returns:
        The rounds of each call, and the calls that the native kernel leaves to the Python kernel.

    Raises:
        RuntimeError: A variant has not recorded or exported all operations.
    """
    cache = native_cache()
    library = library_folder(cache) if cache is not None else None
    taken = [variant for variant in variants if library is not None or variant is not Variant.NATIVE]
    with ExitStack() as stack:
        tapes = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm")))
        sink = stack.enter_context(SpanSink())
        conditions = Conditions(tapes, sink.endpoint, library, world.backend, world.size, world.calls)
        timers = stack.enter_context(call_timers(taken, conditions))
        recording = [variant for variant in (Variant.PYTHON, Variant.NATIVE) if variant in timers]
        recorded = {variant: OperationsOnTapes(conditions.tapes_of(variant)) for variant in recording}
        timings: dict[str, dict[Variant, list[Timing]]] = {}
        for name, kind in timers[Variant.BARE].kinds.items():
            if not names or name in names:
                timings[name] = take_turns(timers, extent.order(name, kind), extent.rounds)
                for counted in recorded.values():
                    counted.look()
        native = timers.get(Variant.NATIVE)
        left = [name for name in timings if native is not None and native.runs_python(name)]
        if Variant.NAIVE in timers:
            require_equal(timers[Variant.NAIVE].operations, sink.received(), "spans were exported")
        for variant, counted in recorded.items():
            counted.look()  # includes the calls made by `runs_python`
            require_equal([timers[variant].records], counted.counts, f"calls were recorded by the {variant.value}")
    return timings, left
