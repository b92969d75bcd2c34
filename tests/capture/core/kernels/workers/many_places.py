"""Calls from code that is used once; then calls of many threads that live at the same time, recorded and not."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from types import CodeType

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.support.ranks.rank import say, start_capture

PIECES = 8_000
THREADS = 300
ones = torch.ones(4)


class Allocated(ctypes.Structure):
    """Memory given out by glibc; `in_use` are the bytes in all arenas."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in (*"abcdefg", "in_use", "free", "top"))


def allocated_kb() -> float:
    """Memory that this process has from `malloc`."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Allocated
    return mallinfo().in_use / 1024


def kb_of_threads() -> float:
    """Return the memory of threads that make one call each, while all of them live."""
    barrier = threading.Barrier(THREADS + 1)

    def call() -> None:
        dist.all_reduce(ones)
        barrier.wait()
        barrier.wait()

    threads = [threading.Thread(target=call) for _ in range(THREADS)]
    before = allocated_kb()
    for thread in threads:
        thread.start()
    barrier.wait()
    taken = allocated_kb() - before
    barrier.wait()
    for thread in threads:
        thread.join()
    return taken


def code_that_lives() -> int:
    """How many code objects still live that were used once."""
    pieces: list[weakref.ref[CodeType]] = []
    for nth in range(PIECES):
        code = compile("dist.all_reduce(ones)", f"piece-{nth % 10}.py", "exec")
        pieces.append(weakref.ref(code))
        exec(code, {"dist": dist, "ones": ones})
    del code
    gc.collect()
    return sum(one() is not None for one in pieces)


dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
unrecorded = kb_of_threads()
capture = start_capture()
say(per_thread_kb=(kb_of_threads() - unrecorded) / THREADS, code=code_that_lives())
dist.destroy_process_group()
