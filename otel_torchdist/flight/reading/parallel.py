"""Reads many files in several processes: a dump takes 10 to 30 ms, and large jobs leave thousands."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Final, TypeVar

ALONE: Final = 64
"""Up to so many files are read without starting processes, which takes half a second."""
MAX_PROCESSES: Final = 8
CHUNK: Final = 8
"""Files that a process is given at a time."""

_File = TypeVar("_File")
_Result = TypeVar("_Result")


def read_each(
    read: Callable[[_File], _Result], files: Iterable[_File], alone: int = ALONE, chunk: int = CHUNK
) -> Iterator[_Result]:
    """Apply a function to files, in their order; only a few of them are in memory at the same time.

    Args:
        read: A function of a module.
        files: What it is applied to, made one by one.
        alone: Up to so many files are read without starting processes.
        chunk: Files that a process is given at a time.
    """
    remaining = iter(files)
    processes = min(len(os.sched_getaffinity(0)), MAX_PROCESSES)
    first = list(itertools.islice(remaining, alone)) if processes > 1 else []
    yield from map(read, first)
    more = next(remaining, None)
    if more is None:
        return
    rest = itertools.chain([more], remaining)
    if processes == 1:
        yield from map(read, rest)
        return
    yield from _in_processes(read, rest, processes, chunk)


def _in_processes(
    read: Callable[[_File], _Result], files: Iterator[_File], processes: int, size: int
) -> Iterator[_Result]:
    context = multiprocessing.get_context("spawn")  # forking a process with threads may lock it up
    waiting: deque[tuple[list[_File], Future[list[_Result]]]] = deque()
    with ProcessPoolExecutor(processes, context, initializer=_leave_interrupts_alone) as pool:
        while True:
            while len(waiting) < 2 * processes and (chunk := list(itertools.islice(files, size))):
                waiting.append((chunk, pool.submit(_read_all, read, chunk)))
            if not waiting:
                return
            chunk, future = waiting.popleft()
            try:
                found = future.result()
            except BrokenProcessPool:  # killed, as by the kernel when memory runs out
                break
            yield from found
    for unread in [chunk, *(one for one, _ in waiting)]:
        yield from map(read, unread)
    yield from map(read, files)


def _read_all(read: Callable[[_File], _Result], files: list[_File]) -> list[_Result]:
    return [read(file) for file in files]


def _leave_interrupts_alone() -> None:
    """Ctrl-C reaches all processes of a terminal: one of them reports it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
