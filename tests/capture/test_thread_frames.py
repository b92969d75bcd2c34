"""Reading the frames of all threads does not hang the program."""

from __future__ import annotations

import subprocess
import sys

BUSY_WITH_GARBAGE = """
import sys
import threading

from otel_torchdist.capture.requests.stacks import current_stacks


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
    """`threading.local` objects in cycles are garbage at any time; up to Python 3.11 freeing one may deadlock."""
    subprocess.run([sys.executable, "-c", BUSY_WITH_GARBAGE], check=True, timeout=300)
