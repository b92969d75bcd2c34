"""A rank that trains a transformer in blocks of steps, and times our observers in them."""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from benchmarks.steps.gloo import join_job
from benchmarks.steps.numerics_orders import CheckedSteps, CheckOrder
from benchmarks.steps.switching import directory_in
from benchmarks.steps.training import Model, Parallelism, Place
from benchmarks.steps.training_rank import Training
from otel_torchdist.capture.session import Capture
from otel_torchdist.capture.tensors.choice import Observers
from otel_torchdist.capture.tensors.ends import AwaitedEnds
from otel_torchdist.capture.tensors.numerics import NumericsObserver
from otel_torchdist.capture.tensors.observed import ObservedCalls
from otel_torchdist.config import Config, NumericsMode

ENTRANCES: Final = (
    (ObservedCalls, "_begin"),
    *((AwaitedEnds, name) for name in ("issued", "end_by_tensors", "settle", "_end")),
)
"""Methods of the observers that the training's threads call."""


class Stopwatch:
    """A stopwatch for the processor time of a thread inside some functions. Nested calls count once.

    Attributes:
        ns: Total in nanoseconds.
        operations: Number of calls of the first function.
    """

    def __init__(self) -> None:
        self.ns = 0
        self.operations = 0
        self._is_inside = False

    def around(self, function: Callable[..., Any], counts: bool) -> Callable[..., Any]:
        """Return the function, timed."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside:
                return function(*args, **kwargs)
            self._is_inside = True
            self.operations += counts
            began_ns = time.thread_time_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.ns += time.thread_time_ns() - began_ns
                self._is_inside = False

        return timed


def serve(connection: Connection, parallelism: Parallelism, model: Model, place: Place) -> None:
    """Train as ordered, until the connection is closed."""
    join_job(place)
    stopwatch = Stopwatch()
    for owner, name in ENTRANCES:
        setattr(owner, name, stopwatch.around(getattr(owner, name), counts=owner is ObservedCalls))
    training = Training(parallelism, model)
    training.steps(1)
    while order := connection.recv():
        connection.send(_run(training, order, place.tapes, stopwatch))


def _run(training: Training, order: CheckOrder, tapes: Path, stopwatch: Stopwatch) -> CheckedSteps:
    is_off = order.mode is NumericsMode.OFF
    numerics = None if is_off else NumericsObserver(order.mode, Config().numerics_every)
    with directory_in(tapes) as own:
        capture = Capture(lambda: own, Config().tape_records, observers=Observers(numerics=numerics))
        capture.install()
        operations = stopwatch.operations
        training.steps(order.warm_up)
        gc.collect()
        began_ns = stopwatch.ns
        _, step_ms = training.steps(order.steps)
        looked_ms = (stopwatch.ns - began_ns) / 1e6 / order.steps
        capture.uninstall()
    return CheckedSteps(step_ms, looked_ms, stopwatch.operations - operations)
