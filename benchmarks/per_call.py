"""What is added to each call, compared between variants that take turns.

Each variant has a process of its own, because some cannot be removed without a trace: a batch processor's thread takes
the GIL from the next variant. All are forked from one process that has imported what they need, so they have the same
modules and the same heap; the garbage collector stays on, and skips objects from before the first call. They take turns
(A B C, B C A, …), so that a machine that becomes slower does so for all; while one runs, the others are idle and have
nothing left to export. `stopwatch` subtracts the time taken by other processes of the machine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TypeAlias

from benchmarks.call_timers import call_timers, take_turns
from benchmarks.orders import Calls, Conditions, Order, Timing, Variant
from benchmarks.recorded import collectives_on_tapes, insist
from benchmarks.sections import Goal, Section
from benchmarks.span_sink import SpanSink
from benchmarks.spread import Spread

GOAL_US: Final = 11.0
GOAL_RATIO: Final = 1 / 6
MAIN: Final = "all_reduce"
"""The call that the goals are about."""
BUSY_SHARE: Final = 0.05

NOTES: Final = (
    "What the caller loses, waits for the GIL included; `bare` is the call itself. Median of rounds ± half of the "
    "range between the quartiles.",
    "empty kernel: a Python kernel in torch's dispatcher that only passes the call on; it is part of `ours`. ours: "
    "capture and tape, without a reader; what reading costs stands below.",
    "naive: start_as_current_span with four attributes, batch processor with a queue that drops nothing, OTLP/gRPC to "
    "a process on this machine: the one that the ratio is taken to. no export: its exporter does nothing.",
)
BUSY: Final = "The machine was busy: others had the processor for {:.0%} of the time of the bare calls; it is left out."


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured.

    Attributes:
        rounds: Rounds of each collective.
        warm_up: Calls before each round; with more than 512, the batch processor is at work when the round begins.
        calls: Timed calls in each round.
    """

    rounds: int
    warm_up: int
    calls: int


USUAL: Final = Extent(rounds=31, warm_up=600, calls=2_000)
QUICK: Final = Extent(rounds=3, warm_up=20, calls=100)

Timings: TypeAlias = Mapping[str, Mapping[Variant, Sequence[Timing]]]


def measure(extent: Extent) -> Section:
    """Time every collective in every variant.

    Raises:
        RuntimeError: Something that a variant should have recorded or exported is missing.
    """
    return _section(time_variants(extent, Calls.USUAL), extent)


def time_variants(extent: Extent, calls: Calls, names: Sequence[str] = ()) -> Timings:
    """Time calls in every variant, in turns.

    Args:
        extent: How much is measured.
        calls: The kind of calls.
        names: The calls that are timed; all if not given.

    Raises:
        RuntimeError: Something that a variant should have recorded or exported is missing.
    """
    with ExitStack() as stack:
        tapes = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm")))
        sink = stack.enter_context(SpanSink())
        timers = stack.enter_context(call_timers(list(Variant), Conditions(tapes, sink.endpoint, calls=calls)))
        timings = {
            name: take_turns(timers, Order(name, extent.warm_up, extent.calls), extent.rounds)
            for name in names or timers[Variant.BARE].names
        }
        insist(timers[Variant.NAIVE].calls.total(), sink.received(), "spans were exported")
        insist([timers[Variant.OURS].calls.total()], collectives_on_tapes(tapes), "calls were recorded")
    return timings


def _section(timings: Timings, extent: Extent) -> Section:
    added = {name: added_by(variants, "caller") for name, variants in timings.items()}
    process = {name: added_by(variants, "process") for name, variants in timings.items()}
    ratios = {name: ours_to_naive(of) for name, of in added.items()}
    waited = _share_waited([timing for variants in timings.values() for timing in variants[Variant.BARE]])
    return Section(
        key="per_call",
        title="Added to a call, in µs (backend `fake`, 8 ranks, 4 floats)",
        columns=["", *(variant.value for variant in Variant), "ours / naive"],
        rows=[
            [name, *(str(added[name][variant]) for variant in Variant), f"1/{1 / ratios[name]:.1f}"] for name in timings
        ],
        notes=[*NOTES, _note_on_process(process[MAIN]), *([BUSY.format(waited)] if waited > BUSY_SHARE else [])],
        goals=[
            Goal(f"added to {MAIN}", added[MAIN][Variant.OURS].median, GOAL_US, "µs"),
            Goal(f"added to {MAIN}, ours / naive", ratios[MAIN], GOAL_RATIO, ""),
        ],
        data={
            "unit": "µs per call",
            **asdict(extent),
            "share_of_time_taken_by_others": waited,
            "collectives": {
                name: {
                    "ours_to_naive": ratios[name],
                    "ours_to_naive_process": ours_to_naive(process[name]),
                    "variants": {
                        variant.value: {
                            "rounds": [timing.caller for timing in rounds],
                            "rounds_process": [timing.process for timing in rounds],
                            "added": asdict(added[name][variant]),
                            "added_process": asdict(process[name][variant]),
                        }
                        for variant, rounds in variants.items()
                    },
                }
                for name, variants in timings.items()
            },
        },
    )


def added_by(timings: Mapping[Variant, Sequence[Timing]], clock: str) -> dict[Variant, Spread]:
    """What each variant adds to the bare call of the same round; for `BARE` the call itself."""
    rounds = {variant: [getattr(timing, clock) for timing in of] for variant, of in timings.items()}
    bare = rounds.pop(Variant.BARE)
    added = {variant: [cost - base for cost, base in zip(of, bare, strict=True)] for variant, of in rounds.items()}
    return {variant: Spread.of(of) for variant, of in {Variant.BARE: bare, **added}.items()}


def ours_to_naive(added: Mapping[Variant, Spread]) -> float:
    """What ours adds as a share of what the naive wrapper adds."""
    return added[Variant.OURS].median / added[Variant.NAIVE].median


def _note_on_process(added: Mapping[Variant, Spread]) -> str:
    return (
        f"Processor time that the whole process spends on one {MAIN}, export included, above the bare call's: "
        f"ours {added[Variant.OURS]} µs, naive {added[Variant.NAIVE]} µs, 1/{1 / ours_to_naive(added):.1f}."
    )


def _share_waited(timings: Sequence[Timing]) -> float:
    waited = sum(timing.waited for timing in timings)
    return waited / (waited + sum(timing.caller for timing in timings))
