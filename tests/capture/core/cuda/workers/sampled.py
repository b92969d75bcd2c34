"""Asynchronous operations far beyond the first ones, each with a wait. Reports timed waits, and events."""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.support.devices.simulated_cuda import MAIN_STREAM, SimulatedCuda
from tests.support.ranks.rank import own_tape, say, start_capture
from tests.support.waiting import until

COUNT = 200
LASTS_NS = 3_000_000
warnings.simplefilter("ignore")
capture = start_capture()
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
cuda = SimulatedCuda(capture, Path(sys.argv[1]))
cuda.device.use_stream(MAIN_STREAM)
cuda.lasts_ns = LASTS_NS
tensor = cuda.tensor()
timed: list[int] = []
raised = 0
tape = own_tape(capture)
events: list[int] = []
for number in range(1, COUNT + 1):
    work = dist.all_reduce(tensor, async_op=True)
    before = cuda.device.recorded
    torch.ops._c10d_functional.wait_tensor(tensor)
    if cuda.device.recorded > before:
        timed.append(number)
    if work is not None:
        work.wait()  # a second wait for the same operation, which the native library sees
    time.sleep(0.004)  # the host is about as fast as the device
    if number % 50 == 0:
        cuda.until_over()
        until(lambda: not tape.poll().entered and not tape.open_operations(), 20.0)
        events.append(len(cuda.device.events))
cuda.waits_raise = True
cuda.lasts_ns = 0
for number in range(1, COUNT + 1):
    dist.all_reduce(tensor, async_op=True)
    try:
        torch.ops._c10d_functional.wait_tensor(tensor)
    except RuntimeError:
        raised += 1
    if number % 10 == 0:
        cuda.until_over()
        until(lambda: not tape.poll().entered and not tape.open_operations(), 20.0)
say(timed=timed, events=[*events, len(cuda.device.events)], ends=[one.kernel.end_ns for one in cuda.ran], raised=raised)
cuda.close()
dist.destroy_process_group()
