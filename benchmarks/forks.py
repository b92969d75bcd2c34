"""Starts processes for measurements. All are forked from one that has imported torch, so they start fast and alike."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final

PRELOADED: Final = (
    "benchmarks.calls.call_timer",
    "benchmarks.programs.small_collectives_rank",
    "benchmarks.steps.ddp_rank",
    "benchmarks.steps.numerics_rank",
    "benchmarks.parts.rank",
    "benchmarks.steps.training_rank",
)


@contextmanager
def forked(serve: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> Iterator[list[Connection]]:
    """Run `serve(connection, *element)` in one process for each element of `arguments`; yield the connections.

    Args:
        serve: A module-level function. Its module must not import torch, so that only the processes do.
        arguments: The arguments of each process.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    processes = []
    connections: list[Connection] = []
    try:
        for element in arguments:
            ours, theirs = context.Pipe()
            process = context.Process(target=_run, args=(serve, theirs, *element), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            connections.append(ours)
        yield connections
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _run(serve: Callable[..., None], connection: Connection, *arguments: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controlling process ends this one
    serve(connection, *arguments)
