"""Processes that each write a tape at a steady rate, faster than it can be read; natively if there is a library."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from otel_torchdist.config import CaptureKernel
from otel_torchdist.model.kinds import Flag, How, RecordKind, RunIdState
from otel_torchdist.model.names import GroupName, SignatureName
from otel_torchdist.native.library import chosen_library
from otel_torchdist.native.recording import NativeTapeWriter
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.layout import LiveWord
from otel_torchdist.tape.writer import TapeWriter

CAPACITY: Final = 16_384
"""Default size of the ring."""
CALLS_PER_STEP: Final = 100
TICK_S: Final = 0.005
RUN_ID: Final = 0xFA57


class FastRanks:
    """The processes. They can be stopped once."""

    def __init__(self, connections: list[Connection], native: bool) -> None:
        self._connections = connections
        self.native = native

    def stop(self) -> tuple[int, int]:
        """Stop the calls; return the total numbers of operations and of records written."""
        for connection in self._connections:
            connection.send(True)
        calls, records = zip(*(connection.recv() for connection in self._connections), strict=True)
        return sum(calls), sum(records)


@contextmanager
def fast_ranks(directory: Path, ranks: int, rate: int) -> Iterator[FastRanks]:
    """Start ranks that write into a job directory; yield when their tapes exist.

    Args:
        directory: The job directory.
        ranks: Number of ranks.
        rate: Operations per second of each rank.
    """
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = []
    connections: list[Connection] = []
    for rank in range(ranks):
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, directory, rank, ranks, rate), daemon=True)
        process.start()
        theirs.close()
        processes.append(process)
        connections.append(ours)
    try:
        native = all([connection.recv() for connection in connections])
        for connection in connections:
            connection.send(True)
        yield FastRanks(connections, native)
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _serve(connection: Connection, directory: Path, rank: int, ranks: int, rate: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one
    library = chosen_library(CaptureKernel.AUTO)
    identity = identify(rank, rank, ranks, CAPACITY)
    tape = TapeWriter(directory, identity) if library is None else NativeTapeWriter(library, directory, identity)
    tape.set_run_id(RUN_ID, RunIdState.AGREED)
    group = tape.names.intern(GroupName("0", "default_pg", tuple(range(ranks)), 0, "gloo", True))
    signature = tape.names.intern(SignatureName("all_reduce", "sum", ((16,),), ("float32",), "cpu", 1))
    tail = TapeWriter.prepare(64, group, signature, 0, 0, -1, 0, 1, RecordKind.OPERATION, Flag.ASYNC)
    connection.send(library is not None)
    connection.recv()
    calls, began_s = 0, time.monotonic()
    while not connection.poll():
        due = round((time.monotonic() - began_s) * rate)
        while calls < due:
            calls += 1
            now_ns = time.monotonic_ns()
            number = tape.begin_prepared(now_ns, (calls - 1) // CALLS_PER_STEP, calls, tail)
            tape.complete(number, now_ns, now_ns + 1_000, How.CALL)
            if calls % CALLS_PER_STEP == 0:
                tape.step_ended(calls // CALLS_PER_STEP - 1, now_ns + 1_000, calls)
        tape.beat()
        time.sleep(TICK_S)
    connection.recv()
    connection.send((calls, tape.view().cast("Q")[LiveWord.NEXT_NUMBER] - 1))
    connection.poll(None)  # the tapes must stay locked: ranks without a process would count as dead
