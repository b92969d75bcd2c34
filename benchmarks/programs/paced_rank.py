"""A rank that communicates at a steady rate, and reports the processor time of our threads meanwhile."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Final

import torch
import torch.distributed as dist

from benchmarks.programs.pace import ASYNCHRONOUS, SYNCHRONOUS, TICK_S, TICKS_PER_STEP, Pace, ThreadTimes
from benchmarks.programs.thread_clock import processor_ns, thread_ids
from benchmarks.steps.gloo import issued, join_job
from benchmarks.steps.training import Place
from otel_torchdist import TorchDistInstrumentor, mark_step
from otel_torchdist.launch.switch import switch_on_from_environment

_RUN_ID: Final = "otel-torchdist-run-id"


def serve(connection: Connection, place: Place, settings: Mapping[str, str], pace: Pace) -> None:
    """Communicate, answer, and switch off on request.

    Args:
        connection: Connection to the controlling process.
        place: The rank.
        settings: Environment variables that turn recording on.
        pace: Duration and rate of the communication.
    """
    join_job(place)
    dist.all_reduce(torch.ones(4))  # makes gloo connect and start its threads
    before = issued()
    users_own = thread_ids()
    os.environ.update(settings)
    switch_on_from_environment()
    traffic = _Traffic()
    traffic.go_on(pace.warm_up_s)
    while any(thread.name == _RUN_ID for thread in threading.enumerate()):
        time.sleep(TICK_S)  # this thread ends after the agreement; it must not end between windows
    percent: dict[str, list[float]] = {}
    for window in range(pace.windows):
        used, began = processor_ns(users_own), time.perf_counter_ns()
        traffic.go_on(pace.window_s)
        elapsed = time.perf_counter_ns() - began
        for name, total in processor_ns(users_own).items():
            percent.setdefault(name, [0.0] * window).append(100 * (total - used[name]) / elapsed)
    traffic.wait()
    connection.send(ThreadTimes(percent, issued() - before))
    connection.recv()  # waits until the tape has been read
    TorchDistInstrumentor().uninstrument()
    connection.send(True)


class _Traffic:
    """The operations of the ticks; those of one tick stay partly in flight until the next."""

    def __init__(self) -> None:
        self._tensor = torch.ones(4)
        self._open: list[dist.Work] = []
        self._ticks = 0

    def go_on(self, seconds: float) -> None:
        """Communicate for the given time."""
        next_s = time.monotonic()
        for _ in range(round(seconds / TICK_S)):
            self._tick()
            next_s += TICK_S
            time.sleep(max(next_s - time.monotonic(), 0))

    def _tick(self) -> None:
        self.wait()
        for _ in range(SYNCHRONOUS):
            dist.all_reduce(self._tensor)
        for _ in range(ASYNCHRONOUS):
            work = dist.all_reduce(self._tensor, async_op=True)
            assert work is not None
            self._open.append(work)
        self._ticks += 1
        if self._ticks % TICKS_PER_STEP == 0:
            mark_step()

    def wait(self) -> None:
        """Wait for the operations in flight."""
        while self._open:
            self._open.pop().wait()
