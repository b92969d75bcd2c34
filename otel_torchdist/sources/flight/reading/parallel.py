"""Reads many files in several processes: a dump takes 10 to 30 ms, and a large job writes thousands."""

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

UNPOOLED: Final = 64
"""Number of files read without starting processes, which takes half a second."""
MAX_PROCESSES: Final = 8
CHUNK: Final = 8
"""Files submitted to a process at a time."""
MAX_WAITING_BYTES: Final = 256 << 20
"""Upper bound on the bytes of submitted files. Files from archives are held in memory."""


class Weighed(Protocol):
    """A file or a member of an archive, with the memory that it takes."""

    @property
    def weight(self) -> int:
        """Bytes of its content that are in memory."""
        ...


_File = TypeVar("_File", bound=Weighed)
_Result = TypeVar("_Result")


def read_each(
    read: Callable[[_File], _Result], files: Iterable[_File], unpooled: int = UNPOOLED, chunk: int = CHUNK
) -> Iterator[_Result]:
    """Apply a function to files, in order. Only a few files are in memory at the same time.

    Args:
        read: A module-level function, so that it can be pickled.
        files: The files, consumed lazily.
        unpooled: Number of files read without starting processes.
        chunk: Files submitted to a process at a time.
    """
    remaining = iter(files)
    processes = min(len(os.sched_getaffinity(0)), MAX_PROCESSES)
    yield from map(read, itertools.islice(remaining, unpooled if processes > 1 else 0))
    following = next(remaining, None)
    if following is None:
        return
    rest = itertools.chain([following], remaining)
    if processes == 1:
        yield from map(read, rest)
        return
    yield from _in_processes(read, rest, processes, chunk)


def _in_processes(
    read: Callable[[_File], _Result], files: Iterator[_File], processes: int, size: int
) -> Iterator[_Result]:
    context = multiprocessing.get_context("spawn")  # forking a process with threads may deadlock
    weight = 0
    waiting: deque[tuple[list[_File], Future[list[_Result]]]] = deque()
    with ProcessPoolExecutor(processes, context, initializer=_ignore_interrupts) as pool:
        while True:
            while len(waiting) < 2 * processes and weight < MAX_WAITING_BYTES and (chunk := _chunk(files, size)):
                waiting.append((chunk, pool.submit(_read_all, read, chunk)))
                weight += _weight(chunk)
            if not waiting:
                return
            chunk, future = waiting.popleft()
            weight -= _weight(chunk)
            try:
                results = future.result()
            except BrokenProcessPool:  # a process was killed, such as by the OOM killer
                break
            yield from results
    for unread in [chunk, *(queued for queued, _ in waiting)]:
        yield from map(read, unread)
    yield from map(read, files)


def _chunk(files: Iterator[_File], size: int) -> list[_File]:
    """Return the next `size` files, or fewer if they are large."""
    chunk: list[_File] = []
    while len(chunk) < size and _weight(chunk) < MAX_WAITING_BYTES // CHUNK and (file := next(files, None)) is not None:
        chunk.append(file)
    return chunk


def _weight(files: Iterable[_File]) -> int:
    return sum(file.weight for file in files)


def _read_all(read: Callable[[_File], _Result], files: list[_File]) -> list[_Result]:
    return [read(file) for file in files]


def _ignore_interrupts() -> None:
    """Ignore SIGINT: Ctrl-C reaches all processes of a terminal, and only the parent reports it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
