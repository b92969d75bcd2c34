"""How much of a core a process and its children use."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time

from otel_torchdist.processes.cpu_time import BETWEEN_NS, QUIET_NS, CpuTime, share_between, ticks_of_tree
from otel_torchdist.tape.identity import identify
from tests.support.waiting import until

SECOND = 1_000_000_000
SPINS = "import time\nprint(flush=True)\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"


def test_children_that_work() -> None:
    """A process that only waits for a child works as long as that does; without one it does not."""
    assert share_between(*_twice(0.3), 0.3) < 0.5
    with subprocess.Popen([sys.executable, "-c", SPINS], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        until(lambda: share_between(*_twice(0.3), 0.3) > 0.1)
        child.kill()


def _twice(seconds: float) -> tuple[dict[int, int], dict[int, int]]:
    before = ticks_of_tree(os.getpid())
    time.sleep(seconds)
    return before, ticks_of_tree(os.getpid())


def test_only_what_calls_nothing_is_measured() -> None:
    """Nothing is known of a rank that calls, nor at the first look; then, the share since the look before."""
    cpu, now_ns = CpuTime(identify(0, 0, 1, 64)), 100 * SECOND
    assert cpu.check(now_ns, now_ns - QUIET_NS + 1) is None
    assert cpu.check(now_ns, now_ns - QUIET_NS) is None
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    busy = cpu.check(now_ns + BETWEEN_NS, now_ns - QUIET_NS)
    assert busy is not None
    assert 0.05 < busy < 0.5
    assert cpu.check(now_ns + BETWEEN_NS + 1, now_ns - QUIET_NS) == busy
    assert cpu.check(now_ns + BETWEEN_NS, now_ns + BETWEEN_NS) is None


def test_out_of_reach() -> None:
    """Nothing is known of a process in another PID namespace."""
    cpu = CpuTime(dataclasses.replace(identify(0, 0, 1, 64), pid_namespace=1))
    assert [cpu.check(moment * SECOND, 0) for moment in (10, 20, 30)] == [None] * 3
