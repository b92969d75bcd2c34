"""Proxies of the processes that time calls, one for each variant, in the controlling process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

from benchmarks.calls.orders import Conditions, Inspection, Kind, Order, Timing, Variant
from benchmarks.forks import forked


class CallTimer:
    """The proxy of a process that times one variant.

    Attributes:
        kinds: The calls that can be timed.
        calls: Number of calls of each kind made so far.
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
        """Return whether a call runs our Python code once it has a plan."""
        inspection = Inspection(name)
        self.calls[name] += inspection.calls
        self._connection.send(inspection)
        return self._connection.recv()

    @property
    def operations(self) -> int:
        """Number of operations in all calls so far."""
        return sum(count * self.kinds[name].operations for name, count in self.calls.items())

    @property
    def records(self) -> int:
        """Number of records expected of all calls so far."""
        return sum(count * self.kinds[name].records for name, count in self.calls.items())


@contextmanager
def call_timers(variants: Sequence[Variant], conditions: Conditions) -> Iterator[dict[Variant, CallTimer]]:
    """Start a timer process for each variant."""
    with forked(_serve, [(variant, conditions) for variant in variants]) as connections:
        yield {variant: CallTimer(connection) for variant, connection in zip(variants, connections, strict=True)}


def take_turns(timers: Mapping[Variant, CallTimer], order: Order, rounds: int) -> dict[Variant, list[Timing]]:
    """Have every variant carry out an order several times, starting with a different variant each time."""
    variants = list(timers)
    timings: dict[Variant, list[Timing]] = {variant: [] for variant in variants}
    for turn in range(rounds):
        first = turn % len(variants)
        for variant in variants[first:] + variants[:first]:
            timings[variant].append(timers[variant].time(order))
    return timings


def _serve(connection: Connection, variant: Variant, conditions: Conditions) -> None:
    # Only the forked processes need torch, and the process that they are forked from has imported it.
    from benchmarks.calls.call_timer import serve

    serve(connection, variant, conditions)
