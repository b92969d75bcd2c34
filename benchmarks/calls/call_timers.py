"""Processes that time calls, one for each variant, as seen by the process that gives them orders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

from benchmarks.calls.orders import Conditions, Inspection, Kind, Order, Timing, Variant
from benchmarks.forks import forked


class CallTimer:
    """A process that times one variant.

    Attributes:
        kinds: The calls that can be timed.
        calls: How many calls of each it has made.
    """

    def __init__(self, connection: Connection) -> None:
        self.kinds: Mapping[str, Kind] = connection.recv()
        self.calls: Counter[str] = Counter()
        self._connection = connection

    def time(self, order: Order) -> Timing:
        """Time one round."""
        self.calls[order.collective] += order.warm_up + order.calls
        self._connection.send(order)
        return self._connection.recv()

    def runs_python(self, name: str) -> bool:
        """Whether a call runs Python code of ours, after it has been planned."""
        inspection = Inspection(name)
        self.calls[name] += inspection.calls
        self._connection.send(inspection)
        return self._connection.recv()

    @property
    def operations(self) -> int:
        """Operations in all its calls."""
        return sum(count * self.kinds[name].operations for name, count in self.calls.items())

    @property
    def records(self) -> int:
        """What should have been recorded of all its calls."""
        return sum(count * self.kinds[name].records for name, count in self.calls.items())


@contextmanager
def call_timers(variants: Sequence[Variant], conditions: Conditions) -> Iterator[dict[Variant, CallTimer]]:
    """A timer for each variant."""
    with forked(_serve, [(variant, conditions) for variant in variants]) as connections:
        yield {variant: CallTimer(connection) for variant, connection in zip(variants, connections, strict=True)}


def take_turns(timers: Mapping[Variant, CallTimer], order: Order, rounds: int) -> dict[Variant, list[Timing]]:
    """Let every variant carry out an order a number of times, each time with another one first."""
    variants = list(timers)
    timings: dict[Variant, list[Timing]] = {variant: [] for variant in variants}
    for turn in range(rounds):
        first = turn % len(variants)
        for variant in variants[first:] + variants[:first]:
            timings[variant].append(timers[variant].time(order))
    return timings


def _serve(connection: Connection, variant: Variant, conditions: Conditions) -> None:
    # Only the forked processes need torch, and the one they are forked from has it already.
    from benchmarks.calls.call_timer import serve

    serve(connection, variant, conditions)
