"""A process that writes the tapes of all ranks of a node at a steady rate, with little processor time."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from benchmarks.readers.busy_tape import WORLD_SIZE, BusyTape

TICK_S: Final = 0.01
CALLS_PER_TICK: Final = 20
CALLS_PER_SECOND: Final = round(CALLS_PER_TICK / TICK_S)
"""Calls per second and rank."""
RUN_ID: Final = 0x0BE7C4


class BusyRanks:
    """The process. It can be stopped once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def stop(self) -> int:
        """Stop the calls; return the total number of calls of all ranks."""
        self._connection.send(True)
        return self._connection.recv()


@contextmanager
def busy_ranks(directory: Path) -> Iterator[BusyRanks]:
    """Start ranks that write into a job directory; yield when their tapes exist."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, directory), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.recv()
        yield BusyRanks(ours)
    finally:
        process.terminate()
        process.join()


def _serve(connection: Connection, directory: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one
    tapes = [BusyTape(directory, rank, RUN_ID) for rank in range(WORLD_SIZE)]
    connection.send(True)
    next_s = time.monotonic()
    while not connection.poll():
        for tape in tapes:
            tape.write(CALLS_PER_TICK)
            tape.writer.beat()
        next_s += TICK_S
        time.sleep(max(next_s - time.monotonic(), 0))
    connection.recv()
    connection.send(sum(tape.calls for tape in tapes))
    connection.poll(None)  # the tapes must stay locked: ranks without a process would count as dead
