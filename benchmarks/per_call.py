"""What is added to each call, compared between variants that take turns.

Each variant has a process of its own, because some cannot be taken out again without a trace: a batch processor's
thread takes the GIL from whoever comes next. All are forked from one process that has imported what they need, so
they have the same modules and the same heap; the garbage collector stays on, and is spared what was there before the
first call. They take turns (A B C, B C A, …), so that a machine that becomes slower does so for all; while one runs,
the others are idle and have nothing left to export. `stopwatch` takes off what other processes of the machine take.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, TypeAlias

from benchmarks.orders import Conditions, Order, Timing, Variant
from benchmarks.sections import Goal, Section
from benchmarks.span_sink import SpanSink
from benchmarks.spread import Spread
from otel_torchdist.tape.directory import tapes_in
from otel_torchdist.tape.reader import TapeReader

GOAL_US: Final = 11.0
GOAL_RATIO: Final = 1 / 6
MAIN: Final = "all_reduce"
"""The call that the goals are about."""
BUSY_SHARE: Final = 0.05

NOTES: Final = (
    "What the caller loses, waits for the GIL included; `bare` is the call itself. Median of rounds ± half of the "
    "range between the quartiles.",
    "empty kernel: a Python kernel in torch's dispatcher that only passes the call on; it is part of `ours`. ours: "
    "capture and tape, read by nobody; what reading costs stands below.",
    "naive: start_as_current_span with four attributes, batch processor with a queue that drops nothing, OTLP/gRPC to "
    "a process on this machine: the one that the ratio is taken to. no export: its exporter does nothing.",
)
BUSY: Final = "The machine was busy: others had the processor for {:.0%} of the time of the bare calls; it is left out."


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured.

    Attributes:
        rounds: For each collective.
        warm_up: Calls before each round; with more than 512, the batch processor is at work when the round begins.
        calls: Timed calls in each round.
    """

    rounds: int
    warm_up: int
    calls: int


USUAL: Final = Extent(rounds=31, warm_up=600, calls=2_000)
QUICK: Final = Extent(rounds=3, warm_up=20, calls=100)

Timings: TypeAlias = Mapping[str, Mapping[Variant, Sequence[Timing]]]


class _Timer:
    """A process that times one variant."""

    def __init__(self, connection: Connection, names: Sequence[str]) -> None:
        self.names = names
        self.calls = 0
        self._connection = connection

    def time(self, order: Order) -> Timing:
        self.calls += order.warm_up + order.calls
        self._connection.send(order)
        return self._connection.recv()


def measure(extent: Extent) -> Section:
    """Time every collective in every variant.

    Raises:
        RuntimeError: What a variant should have recorded or exported is not there.
    """
    with ExitStack() as stack:
        tapes = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm")))
        sink = stack.enter_context(SpanSink())
        timers = stack.enter_context(_timers(Conditions(tapes, sink.endpoint)))
        timings = _take_turns(timers, extent)
        _check(timers[Variant.NAIVE].calls, sink.received(), "spans were exported")
        _check(timers[Variant.OURS].calls, _recorded(tapes), "calls were recorded")
    return _section(timings, extent)


@contextmanager
def _timers(conditions: Conditions) -> Iterator[dict[Variant, _Timer]]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.call_timer"])
    processes = []
    connections: dict[Variant, Connection] = {}
    try:
        for variant in Variant:
            connections[variant], theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, variant, conditions), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
        yield {variant: _Timer(connection, connection.recv()) for variant, connection in connections.items()}
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _serve(connection: Connection, variant: Variant, conditions: Conditions) -> None:
    # Only the forked processes need torch, and the one they are forked from has it already.
    from benchmarks.call_timer import serve

    serve(connection, variant, conditions)


def _take_turns(timers: Mapping[Variant, _Timer], extent: Extent) -> Timings:
    variants = list(timers)
    timings: dict[str, dict[Variant, list[Timing]]] = {}
    for name in timers[Variant.BARE].names:
        order = Order(name, extent.warm_up, extent.calls)
        timings[name] = {variant: [] for variant in variants}
        for turn in range(extent.rounds):
            first = turn % len(variants)
            for variant in variants[first:] + variants[:first]:
                timings[name][variant].append(timers[variant].time(order))
    return timings


def _check(expected: int, found: int, what: str) -> None:
    if found != expected:
        raise RuntimeError(f"{found} of {expected} {what}: the timings mean nothing")


def _recorded(directory: Path) -> int:
    """Collectives on the only tape: the sequence of the newest."""
    (path,) = tapes_in(directory)
    tape = TapeReader(path)
    try:
        return tape.poll().entered[-1].sequence
    finally:
        tape.close()


def _section(timings: Timings, extent: Extent) -> Section:
    added = {name: _added(variants, "caller") for name, variants in timings.items()}
    process = {name: _added(variants, "process") for name, variants in timings.items()}
    ratios = {name: _ratio(of) for name, of in added.items()}
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
                    "ours_to_naive_process": _ratio(process[name]),
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


def _added(timings: Mapping[Variant, Sequence[Timing]], clock: str) -> dict[Variant, Spread]:
    """What each variant adds to the bare call of the same round; for `BARE` the call itself."""
    rounds = {variant: [getattr(timing, clock) for timing in of] for variant, of in timings.items()}
    bare = rounds.pop(Variant.BARE)
    added = {variant: [cost - base for cost, base in zip(of, bare, strict=True)] for variant, of in rounds.items()}
    return {variant: Spread.of(of) for variant, of in {Variant.BARE: bare, **added}.items()}


def _ratio(added: Mapping[Variant, Spread]) -> float:
    return added[Variant.OURS].median / added[Variant.NAIVE].median


def _note_on_process(added: Mapping[Variant, Spread]) -> str:
    return (
        f"Processor time that the whole process spends on one {MAIN}, export included, above the bare call's: "
        f"ours {added[Variant.OURS]} µs, naive {added[Variant.NAIVE]} µs, 1/{1 / _ratio(added):.1f}."
    )


def _share_waited(timings: Sequence[Timing]) -> float:
    waited = sum(timing.waited for timing in timings)
    return waited / (waited + sum(timing.caller for timing in timings))
