"""Reading the stacks of running threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from otel_torchdist.capture.core.requests.stacks import current_stacks

TIMES = 3_000


class Runner:
    """A thread that calls one of two functions after the other, each from a line of its own."""

    def __init__(self) -> None:
        self._is_over = False
        self._thread = threading.Thread(target=self.run, name="runner")
        self._thread.start()

    def run(self) -> None:
        """Run until the end."""
        while not self._is_over:
            self.first()
            self.second()

    def first(self) -> None:
        """Take a while."""
        sum(range(20))

    def second(self) -> None:
        """Take a while."""
        sum(range(20))

    def end(self) -> None:
        """End the thread."""
        self._is_over = True
        self._thread.join()


@pytest.fixture
def runner() -> Iterator[Runner]:
    """A running thread, with thread switches as frequent as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    runner = Runner()
    yield runner
    runner.end()
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("runner")
def test_thread_does_not_run_meanwhile() -> None:
    """All frames of a stack are from one moment: each frame is at the line that calls the next."""
    first_line = Runner.run.__code__.co_firstlineno
    lines = {Runner.first.__qualname__: first_line + 3, Runner.second.__qualname__: first_line + 4}
    seen: set[str] = set()
    for _ in range(TIMES):
        [stack] = [stack for stack in current_stacks() if stack.name == "runner"]
        inner, outer = stack.frames[:2]
        name = getattr(Runner, inner.function.rpartition(".")[2], Runner.run).__qualname__
        if name in lines:
            assert outer.line == lines[name]
            seen.add(name)
    assert seen == lines.keys()


BUSY_WITH_GARBAGE = """
import sys
import threading

from otel_torchdist.capture.core.requests.stacks import current_stacks


class Owner:
    def __init__(self):
        self.itself, self.local = self, threading.local()
        self.local.value = 1


def step():
    sum(range(20))


def run():
    while not over:
        step()


over = False
sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=run, daemon=True) for _ in range(8)]
for thread in threads:
    thread.start()
for _ in range(400):
    Owner()
    current_stacks()
over = True
"""


def test_garbage_that_is_collected_meanwhile() -> None:
    """Reading stacks does not deadlock while `threading.local` objects in cycles become garbage (up to Python 3.11)."""
    subprocess.run([sys.executable, "-c", BUSY_WITH_GARBAGE], check=True, timeout=300)
