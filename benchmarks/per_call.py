"""What is added to each call, compared between variants that take turns.

Each variant has a process of its own, because some cannot be taken out again without a trace: a batch processor's
thread takes the GIL from whoever comes next. All are forked from one process that has imported what they need, so
they have the same modules, the same heap and the same state of the garbage collector, which stays on. They take turns
(A B C, B C A, …), so that a machine that becomes slower does so for all; while one runs, the others are idle and
have nothing left to export. `stopwatch` takes off what other processes of the machine take.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeAlias

from benchmarks.orders import Conditions, Order, Variant
from benchmarks.sections import Goal, Section
from benchmarks.span_sink import SpanSink
from benchmarks.spread import Spread
from benchmarks.stopwatch import Elapsed
from otel_torchdist.tape.directory import tapes_in
from otel_torchdist.tape.reader import TapeReader

GOAL_US: Final = 11.0
GOAL_RATIO: Final = 1 / 6
MAIN: Final = "all_reduce"
"""The call that the goals are about."""
BUSY: Final = 0.05

NOTES: Final = (
    "What the caller loses, waits for the GIL included; `bare` is the call itself. Median of rounds ± half of the "
    "range between the quartiles.",
    "empty kernel: a Python kernel in torch's dispatcher that only passes the call on; it is part of `ours`. ours: "
    "capture and tape, read by nobody; what reading costs stands below.",
    "naive: start_as_current_span with four attributes, batch processor with a queue that drops nothing, OTLP/gRPC to "
    "a process on this machine: the one that the ratio is taken to. no export: its exporter does nothing.",
)


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

Timings: TypeAlias = Mapping[str, Mapping[Variant, Sequence[Elapsed]]]


class _Timer:
    """A process that times one variant."""

    def __init__(self, connection: Connection, names: Sequence[str]) -> None:
        self.names = names
        self.calls = 0
        self._connection = connection

    def time(self, order: Order) -> Elapsed:
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
    timings: dict[str, dict[Variant, list[Elapsed]]] = {}
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
    costs = {name: _costs(variants, extent.calls) for name, variants in timings.items()}
    added = {name: _added(of) for name, of in costs.items()}
    ratios = {name: of[Variant.OURS].median / of[Variant.NAIVE].median for name, of in added.items()}
    waited = _share_waited([elapsed for variants in timings.values() for elapsed in variants[Variant.BARE]])
    busy = f"The machine was busy: {waited:.0%} of the time of the bare calls went to other processes; it is left out."
    return Section(
        key="per_call",
        title="Added to a call, in µs (backend `fake`, 8 ranks, 4 floats)",
        columns=["", *(variant.value for variant in Variant), "ours / naive"],
        rows=[
            [name, *(str(added[name][variant]) for variant in Variant), f"1/{1 / ratios[name]:.1f}"] for name in timings
        ],
        notes=[*NOTES, busy] if waited > BUSY else NOTES,
        goals=[
            Goal(f"added to {MAIN}", added[MAIN][Variant.OURS].median, GOAL_US, "µs"),
            Goal(f"added to {MAIN}, ours / naive", ratios[MAIN], GOAL_RATIO, ""),
        ],
        data={
            "unit": "µs per call",
            **asdict(extent),
            "share_of_time_taken_by_others": waited,
            "collectives": {name: _data(costs[name], added[name], ratios[name]) for name in timings},
        },
    )


Costs: TypeAlias = Mapping[Variant, Sequence[float]]
"""Microseconds per call in each round."""


def _costs(timings: Mapping[Variant, Sequence[Elapsed]], calls: int) -> Costs:
    return {variant: [elapsed.own / calls / 1000 for elapsed in rounds] for variant, rounds in timings.items()}


def _added(costs: Costs) -> dict[Variant, Spread]:
    """What each variant adds to the bare call of the same round; for `BARE` the call itself."""
    bare = costs[Variant.BARE]
    return {
        variant: Spread.of(
            rounds if variant is Variant.BARE else [cost - base for cost, base in zip(rounds, bare, strict=True)]
        )
        for variant, rounds in costs.items()
    }


def _share_waited(timings: Sequence[Elapsed]) -> float:
    waited = sum(elapsed.waited for elapsed in timings)
    return waited / (waited + sum(elapsed.own for elapsed in timings))


def _data(costs: Costs, added: Mapping[Variant, Spread], ratio: float) -> Any:
    variants = {
        variant.value: {"rounds": rounds, "added": None if variant is Variant.BARE else asdict(added[variant])}
        for variant, rounds in costs.items()
    }
    return {"variants": variants, "ours_to_naive": ratio}
