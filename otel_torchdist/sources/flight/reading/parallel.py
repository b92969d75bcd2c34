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
from typing import Final, Protocol, TypeVar

ALONE: Final = 64
"""Up to so many files are read without starting processes, which takes half a second."""
MAX_PROCESSES: Final = 8
CHUNK: Final = 8
"""Files that a process is given at a time."""
MAX_WAITING_BYTES: Final = 256 << 20
"""Contents that wait for a process, beyond one file: those inside archives are in memory."""


class Weighed(Protocol):
    """A file, or a member of an archive."""

    @property
    def weight(self) -> int:
        """Bytes of its content that are in memory."""
        ...


_File = TypeVar("_File", bound=Weighed)
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
    yield from map(read, itertools.islice(remaining, alone if processes > 1 else 0))
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
    weight = 0
    waiting: deque[tuple[list[_File], Future[list[_Result]]]] = deque()
    with ProcessPoolExecutor(processes, context, initializer=_leave_interrupts_alone) as pool:
        while True:
            while len(waiting) < 2 * processes and weight < MAX_WAITING_BYTES and (chunk := _chunk(files, size)):
                waiting.append((chunk, pool.submit(_read_all, read, chunk)))
                weight += _weight(chunk)
            if not waiting:
                return
            chunk, future = waiting.popleft()
            weight -= _weight(chunk)
            try:
                found = future.result()
            except BrokenProcessPool:  # killed, as by the kernel when memory runs out
                break
            yield from found
    for unread in [chunk, *(one for one, _ in waiting)]:
        yield from map(read, unread)
    yield from map(read, files)


def _chunk(files: Iterator[_File], size: int) -> list[_File]:
    """Take the next files: `size` of them, or fewer if they are large."""
    chunk: list[_File] = []
    while len(chunk) < size and _weight(chunk) < MAX_WAITING_BYTES // CHUNK and (file := next(files, None)) is not None:
        chunk.append(file)
    return chunk


def _weight(files: Iterable[_File]) -> int:
    return sum(file.weight for file in files)


def _read_all(read: Callable[[_File], _Result], files: list[_File]) -> list[_Result]:
    return [read(file) for file in files]


def _leave_interrupts_alone() -> None:
    """Ctrl-C reaches all processes of a terminal: one of them reports it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
