"""One rank that calls `expect_wait`; prints for how many seconds its tape has the expectation."""

from __future__ import annotations

import math
import time

import torch.distributed as dist

from otel_torchdist import expect_wait
from tests.support.ranks.rank import join, own_tape, say, start_capture

before = expect_wait(500)  # switched off, it does nothing
capture = start_capture()
join()


def expected_s() -> int:
    """Seconds for which the tape of this process expects a wait since it was announced; 0 if it does not."""
    until_ns = own_tape(capture).status().expects_until_ns
    return round((until_ns - announced_ns) / 1e9) if until_ns else 0


announced_ns = time.monotonic_ns()
seen = [expected_s()]
with expect_wait(100):
    seen.append(expected_s())
    with expect_wait(10):
        seen.append(expected_s())
    with expect_wait(1000):
        seen.append(expected_s())
    seen.append(expected_s())
seen.append(expected_s())
try:
    with expect_wait(50):
        raise KeyError
except KeyError:
    seen.append(expected_s())
announced_ns = time.monotonic_ns()
announced = expect_wait(200)
seen.append(expected_s())
dist.destroy_process_group()
join(suffix="-again")
seen.append(expected_s())  # a new tape has it too
announced.end()
announced.end()
seen.append(expected_s())
with expect_wait(math.inf):
    endless = expected_s()
for wrong in (-1, math.nan):
    expect_wait(wrong)
seen.append(expected_s())
dist.destroy_process_group()
expect_wait(5)
capture.uninstall()
expect_wait(5)
before.end()
say(seen=seen, endless_years=endless / 86_400 / 365)
