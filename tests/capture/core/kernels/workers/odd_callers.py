"""Calls from generators, coroutines, C code, destructors and freed code, and waits for objects that are no Works."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from otel_torchdist.capture.core import call_sites
from tests.support.ranks.rank import say, start_capture

TIMES = 4
PIECES = 150
call_sites.MAX_CACHED = 100  # so that code is forgotten, and its addresses used again
ones = torch.ones(4)


def reduce(*_: Any) -> int:
    """A call of the program."""
    dist.all_reduce(ones)
    return 0


def generated() -> Iterator[None]:
    """Call between yields."""
    while True:
        dist.broadcast(ones, 0)
        yield


async def awaited() -> None:
    """Calls in a coroutine that is suspended meanwhile."""
    for _ in range(TIMES):
        dist.all_reduce(ones)
        await asyncio.sleep(0)


async def several() -> None:
    """Several coroutines that take turns."""
    await asyncio.gather(awaited(), awaited())


class Calls:
    """An object whose special methods call."""

    def __init__(self) -> None:
        dist.all_reduce(ones)

    def __del__(self) -> None:
        dist.broadcast(ones, 1)

    def __lt__(self, other: object) -> bool:
        dist.all_gather_into_tensor(torch.ones(8), ones)
        return False

    @property
    def value(self) -> int:
        """Calls, too."""
        return reduce()


@contextlib.contextmanager
def managed() -> Iterator[None]:
    """Call on entry and exit."""
    dist.all_reduce(ones)
    yield
    dist.broadcast(ones, 1)


def deep(depth: int) -> None:
    """A call below many frames of the program."""
    reduce() if depth == 0 else deep(depth - 1)


def from_c() -> None:
    """Calls with C between Python's frames."""
    list(map(reduce, range(TIMES)))
    sorted(range(TIMES), key=reduce)
    functools.reduce(lambda _, __: reduce(), range(TIMES))
    callback = ctypes.CFUNCTYPE(ctypes.c_int)(reduce)
    for _ in range(TIMES):
        callback()
        functools.partial(reduce, 1)()
        eval("reduce()")
        sorted([Calls(), Calls()])
        with managed():
            Calls().value  # noqa: B018
        deep(80)
        gc.collect()


def from_code_that_goes() -> list[int]:
    """Call from code objects that are freed afterwards, each on its own line."""
    lines = []
    for nth in range(PIECES):
        source = "\n" * nth + "for _ in range(3): dist.all_reduce(ones)"
        exec(compile(source, f"piece-{nth}.py", "exec"), {"dist": dist, "ones": ones})
        lines += 3 * [nth + 1]
    return lines


class Other(dist.Work):
    """A Work that is written in Python."""

    def wait(self, timeout: Any = None) -> bool:
        """Nothing to wait for."""
        return True


class Inherits(dist.Work):
    """A Work with torch's own `wait`."""


class Both(Other, dist.FileStore.__mro__[1]):  # type: ignore[misc]
    """A Work with two C++ bases, so its instances have another layout."""

    def __init__(self) -> None:
        dist.Work.__init__(self)
        dist.Store.__init__(self)


def raised(call: Callable[[], Any]) -> str:
    """Return the exception that a call raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return ""


def waits() -> list[str]:
    """Wait in every way, for Works and other objects."""
    work = dist.all_reduce(ones, async_op=True)
    assert work is not None
    kept = weakref.ref(work)
    wait: Any = dist.Work.wait
    others = (0, None, "text", object(), torch.ones(1), dist.Work, ones.shape, 1 << 200, (), Calls.value)
    answers = [raised(functools.partial(wait, other)) for other in others]
    answers += [raised(wait), raised(lambda: wait(work, 1, 2, 3)), raised(lambda: wait(work, no="such"))]
    answers += [raised(lambda: wait(work)), raised(work.wait), raised(kept().wait)]
    answers += [raised(make().wait) for make in (Other, Both)]
    return [*answers, raised(lambda: wait(Inherits(), timedelta(milliseconds=1)))]


def main() -> None:
    """Make all of them, in this thread and in another."""
    capture = start_capture(8192)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    generator = generated()
    for _ in range(TIMES):
        next(generator)
    asyncio.run(several())
    from_c()
    thread = threading.Thread(target=from_c)
    thread.start()
    thread.join()
    dist.barrier()
    lines = from_code_that_goes()
    dist.barrier()
    say(lines=lines, waits=waits())
    dist.destroy_process_group()
    capture.uninstall()
    say(waits=waits_without_us())


def waits_without_us() -> list[str]:
    """Repeat the waits after recording was switched off."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    answers = waits()
    dist.destroy_process_group()
    return answers


if __name__ == "__main__":
    main()
