"""The stack of a thread with an event loop shows the awaited coroutines, not only the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from otel_torchdist.capture.core.requests.stacks import current_stacks
from otel_torchdist.judge.world.places import user_frame
from tests.support.waiting import until


async def answer(future: asyncio.Future[None]) -> None:
    """Wait for what does not come."""
    await future


async def done() -> None:
    """Nothing to wait for."""


async def awaits(future: asyncio.Future[None]) -> None:
    """Wait for another coroutine."""
    await answer(future)


async def gathers(future: asyncio.Future[None]) -> None:
    """Wait for one of several."""
    await asyncio.gather(done(), awaits(future), done())


async def beats() -> None:
    """Another task, for which nobody waits."""
    while True:
        await asyncio.sleep(0.001)


Program = Callable[[asyncio.Future[None]], Coroutine[Any, Any, None]]


@contextmanager
def running(program: Program) -> Iterator[threading.Event]:
    """Run a program in a thread, beside another task, until the end."""
    started, parts = threading.Event(), list[Any]()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        parts.extend((loop, loop.create_future(), loop.create_task(beats())))
        loop.call_later(0.01, started.set)
        await program(parts[1])

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="loop")
    thread.start()
    yield started
    parts[0].call_soon_threadsafe(parts[1].set_result, None)
    thread.join()


def functions() -> list[str]:
    """Return the functions of the thread's stack, innermost first; empty while another coroutine runs."""
    [stack] = [one for one in current_stacks() if one.name == "loop"]
    place = user_frame(stack.frames)
    return [frame.function for frame in stack.frames] if place is not None and place.function == "answer" else []


@pytest.mark.parametrize("program", [answer, awaits, gathers])
def test_innermost_coroutine_is_shown(program: Program) -> None:
    """The stack leads through coroutines and gathered tasks to the line that awaits the missing result."""
    with running(program) as started:
        assert started.wait(10)
        names = until(functions)
    shown = [name for name in names if name in ("answer", program.__name__)]
    assert shown == [*dict.fromkeys(("answer", program.__name__))]
    assert "beats" not in names
