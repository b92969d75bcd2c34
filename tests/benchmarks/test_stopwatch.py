"""What benchmarks time with, on a core that another process wants too."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from benchmarks.stopwatch import time_of
from tests.support.repository import REPOSITORY

ROUNDS = 20_000
ON_ONE_CORE = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
BUSY = f"{ON_ONE_CORE}\nwhile True: pass"
TIMED = f"""
{ON_ONE_CORE}
import json
from benchmarks.stopwatch import time_of
print(json.dumps([(elapsed.own, elapsed.waited) for elapsed in (time_of(int) for _ in range({ROUNDS}))]))
"""


def test_wait_while_the_wait_is_read_is_not_the_works() -> None:
    """Of 20,000 calls of less than a microsecond none takes no time or less, wherever the thread loses its core."""
    other = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        printed = subprocess.check_output([sys.executable, "-c", TIMED], cwd=REPOSITORY)
    finally:
        other.kill()
        other.wait()
    timed = json.loads(printed)
    assert len(timed) == ROUNDS
    assert min(own for own, _ in timed) > 0
    assert min(waited for _, waited in timed) >= 0


def test_sleep_is_the_works_own_time() -> None:
    """A thread that sleeps wants no processor: its time is counted in full, but for what it waits for afterwards."""
    elapsed = time_of(lambda: time.sleep(0.05))
    assert elapsed.own >= 50_000_000
