"""Threads that wait for a lock, and threads that wait for something else, run, or want to run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from otel_torchdist.system.this_process.locks import waits_for_lock
from tests.support.waiting import until


def started(target: Callable[[], object]) -> int:
    """The native id of a thread that runs this."""
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    assert thread.native_id is not None
    return thread.native_id


def test_lock() -> None:
    """A thread waits for a lock as long as another one has it."""
    lock, over = threading.Lock(), threading.Event()

    def take() -> None:
        with lock:
            pass
        over.wait(60)  # with a limit

    with lock:
        thread = started(take)
        until(lambda: waits_for_lock(thread) is True, 30)
    until(lambda: waits_for_lock(thread) is False, 30)
    over.set()


def test_what_is_no_lock() -> None:
    """A read and a pause are none."""
    here, there = os.pipe()
    reading, pausing = started(lambda: os.read(here, 1)), started(lambda: time.sleep(30))
    until(lambda: [waits_for_lock(reading), waits_for_lock(pausing)] == [False, False])
    assert not any(waits_for_lock(thread) for thread in (reading, pausing) for _ in range(50))
    os.write(there, b"x")


def test_wait_for_the_gil() -> None:
    """Who wants to run Python while this thread does is not taken for one that waits for a lock."""
    over: list[bool] = []

    def run() -> None:
        while not over:
            pass

    thread = started(run)
    seen = [waits_for_lock(thread) for _ in range(200)]
    over.append(True)
    assert seen.count(True) <= len(seen) // 20  # for a moment after it has given the GIL away


def test_thread_that_is_gone() -> None:
    """Nothing is known of it."""
    assert waits_for_lock(1) is None
