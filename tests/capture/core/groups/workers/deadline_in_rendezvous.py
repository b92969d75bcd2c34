"""A deadline that expires while rank 0 sets the run id, inside `init_process_group`.

Then the program goes on with the group that exists by then.
"""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]  # as torch's manual has it

from otel_torchdist.capture.core.run import run_id
from tests.support.ranks.rank import own_tape, say, start_capture
from tests.support.waiting import until

WAITS_S = 20.0


class Deadline(Exception):
    """Raised by the program's own deadline."""


def late(signum: int, frame: FrameType | None) -> None:
    """Raise the deadline, as the program's signal handler."""
    del signum, frame
    raise Deadline


def late_set(store: Any) -> bool:
    """Take long before setting the id."""
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    time.sleep(WAITS_S)
    return sends_only(store)


sends_only = run_id.sends_only
run_id.sends_only = late_set
capture = start_capture()
signal.signal(signal.SIGALRM, late)
caught = False
began = time.monotonic()
try:
    dist.init_process_group("gloo", rank=0, world_size=1, store=HashStore())
except Deadline:
    caught = time.monotonic() - began < WAITS_S
is_there = dist.is_initialized()
dist.all_reduce(torch.ones(1))
dist.barrier()
reader = own_tape(capture)
until(lambda: reader.status().run_id)
reader.poll()
state = reader.status().run_id_state.name
dist.destroy_process_group()
say(caught=caught, is_there=is_there, state=state, open=len(reader.open_operations()))
