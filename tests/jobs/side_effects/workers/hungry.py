"""One rank with a thread that never releases the GIL by itself, beside DDP's backward: recorded and not, in turn.

Reports how much longer a recorded backward takes, in waits for the GIL per operation: Python hands over the GIL once in
a switch interval, so every wait for it takes that long.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.support.ranks.rank import join, own_tape, say, start_capture

LAYERS = 8
EACH_PARAMETER_MB = 0.0001
ROUNDS, STEPS = 3, 5
BRIEF_S = 0.0001
"""Between the measurements: switching capture on and off releases the GIL often, and would wait for long."""


def be_hungry() -> None:
    """Compute in Python."""
    while True:
        sum(range(1000))


def backward_s() -> float:
    """One backward, in which DDP reduces one bucket after the other."""
    loss = model(batch).sum()
    began = time.perf_counter()
    loss.backward()
    return time.perf_counter() - began


warnings.simplefilter("ignore")
torch.set_num_threads(1)
join()
batch = torch.ones(4, 64)
model = DistributedDataParallel(
    torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(LAYERS)]), bucket_cap_mb=EACH_PARAMETER_MB
)
for _ in range(3):  # DDP determines its order of buckets
    backward_s()
threading.Thread(target=be_hungry, daemon=True).start()
recorded: list[float] = []
unrecorded: list[float] = []
operations = 0
interval_s = sys.getswitchinterval()
for _ in range(ROUNDS):
    sys.setswitchinterval(interval_s)
    unrecorded += [backward_s() for _ in range(STEPS)]
    sys.setswitchinterval(BRIEF_S)
    capture = start_capture()
    backward_s()  # all that is computed once
    tape = own_tape(capture)
    tape.poll()
    sys.setswitchinterval(interval_s)
    recorded += [backward_s() for _ in range(STEPS)]
    sys.setswitchinterval(BRIEF_S)
    operations = len(tape.poll().entered) // STEPS
    capture.uninstall()
added_s = statistics.median(recorded) - statistics.median(unrecorded)
say(operations=operations, waits_added=added_s / interval_s / operations)
dist.destroy_process_group()
os._exit(0)
