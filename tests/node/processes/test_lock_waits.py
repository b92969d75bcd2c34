"""Children that can never go on are told from those that have nothing to do, or whose threads still run."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.process import BaseProcess

import pytest

from otel_torchdist.node.processes.children import lock_wait_of, waits_for_own_lock
from otel_torchdist.node.processes.state import SystemCall
from tests.support.waiting import until

pytestmark = pytest.mark.process
CLOCK_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
"""Resolution of a process's start in /proc."""
_context = multiprocessing.get_context("fork")


def is_locked(pid: int | None) -> bool:
    """Whether a child waits for its own locks."""
    assert pid is not None
    return lock_wait_of(pid, os.getpid(), time.monotonic_ns()) is not None


@pytest.fixture
def forked() -> Iterator[Callable[[Callable[[], object]], BaseProcess]]:
    """Forks a child that calls a function."""
    made: list[BaseProcess] = []

    def fork(function: Callable[[], object]) -> BaseProcess:
        child = _context.Process(target=function, daemon=True)
        child.start()
        made.append(child)
        return child

    yield fork
    for child in made:
        child.kill()
        child.join()


def test_lock_held_when_it_was_forked(forked: Callable[[Callable[[], object]], BaseProcess]) -> None:
    """A child that waits for a lock that a thread of its parent held is found, with the time since when."""
    lock, before_ns = threading.Lock(), time.monotonic_ns()
    with lock:
        child = forked(lock.acquire)
    until(lambda: is_locked(child.pid))
    assert child.pid is not None
    wait = lock_wait_of(child.pid, os.getpid(), time.monotonic_ns())
    assert wait is not None
    assert (wait.pid, wait.is_forked, wait.is_loader) == (child.pid, True, False)
    assert wait.since_ns is None or before_ns - CLOCK_TICK_NS < wait.since_ns < time.monotonic_ns()


def test_threads_that_wait_for_each_other(forked: Callable[[Callable[[], object]], BaseProcess]) -> None:
    """A child of several threads is found once all of them wait."""
    lock, is_over = threading.Lock(), _context.Event()

    def wait() -> None:
        sleeper = threading.Thread(target=lambda: is_over.wait() and lock.acquire())
        lock.acquire()
        sleeper.start()
        lock.acquire()

    child = forked(wait)
    until(lambda: len(os.listdir(f"/proc/{child.pid}/task")) == 2)
    time.sleep(0.2)
    assert not is_locked(child.pid), "a thread waits for an event of another process, and may release the lock then"
    is_over.set()
    until(lambda: is_locked(child.pid))


@pytest.mark.parametrize(
    "function",
    [
        lambda: threading.Lock().acquire() and time.sleep(600),
        lambda: [lock := threading.Lock(), lock.acquire(), lock.acquire(timeout=600)],
        lambda: _context.Event().wait(),
        lambda: os.read(os.pipe()[0], 1),
        lambda: [None for _ in iter(int, 1)],
    ],
    ids=["sleep", "timeout", "event of processes", "pipe", "runs"],
)
def test_children_that_may_go_on(
    forked: Callable[[Callable[[], object]], BaseProcess], function: Callable[[], object]
) -> None:
    """A child that sleeps, waits with a limit, for another process or a message, or runs is not found."""
    child = forked(function)
    for _ in range(20):
        time.sleep(0.02)
        assert not is_locked(child.pid)


def test_pools_without_work() -> None:
    """Workers that wait for the lock of their queue while another one reads from it have nothing to do."""
    with _context.Pool(3) as pool, ProcessPoolExecutor(3, mp_context=_context) as executor:
        pool.map(abs, range(6))
        list(executor.map(abs, range(6)))
        children = [child.pid for child in multiprocessing.active_children()]
        assert len(children) == 6
        for _ in range(10):
            time.sleep(0.02)
            assert not any(map(is_locked, children))


def test_process_that_is_gone() -> None:
    """It waits for nothing."""
    assert lock_wait_of(2**22 + 1, os.getpid(), 1) is None


@pytest.mark.parametrize(
    ("arguments", "is_own"),
    [
        ("202 0x55cb 0x189 0x0 0x0 0x0 0xffff 0x7ffd 0x7f00", True),
        ("202 0x55cb 0x80 0x2 0x0 0x0 0x0 0x7ffd 0x7f00", True),
        ("202 0x55cb 0x109 0x0 0x0 0x0 0xffff 0x7ffd 0x7f00", False),
        ("202 0x55cb 0x189 0x0 0x7ffe 0x0 0xffff 0x7ffd 0x7f00", False),
        ("202 0x55cb 0x81 0x1 0x0 0x0 0x0 0x7ffd 0x7f00", False),
        ("202", False),
    ],
    ids=["semaphore", "mutex", "shared", "limit", "wakes another", "cut"],
)
def test_arguments(arguments: str, is_own: bool) -> None:
    """Only waits for private futexes without a timeout count."""
    assert waits_for_own_lock(SystemCall("futex", arguments)) == is_own
