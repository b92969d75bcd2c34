"""One rank of a job whose shapes never repeat, until its dictionary has no room left for them."""

from __future__ import annotations

import logging

import torch
import torch.distributed as dist

from otel_torchdist.model.names import MAX_NAMES, OTHER, SPARE_OF_SHAPES, SignatureName
from tests.support.ranks.rank import join, own_tape, say, start_capture
from tests.support.waiting import until

warned: list[logging.LogRecord] = []
logging.getLogger("otel_torchdist").addFilter(lambda record: warned.append(record) is None)
capture = start_capture()
join()
tape = own_tape(capture)
recorder = capture.current_recorder()
assert recorder is not None
names = recorder.tape.names
for size in range(MAX_NAMES):  # as if it had called all_reduce that often
    if (
        names.intern_optional(SignatureName("recorded", "", ((size,),), ("float32",), "cpu", 1), SPARE_OF_SHAPES)
        == OTHER
    ):
        break


def late(group: dist.ProcessGroup) -> None:
    """Communicate from new call sites."""
    for size in range(1, 6):
        dist.all_reduce(torch.ones(size), group=group)
    dist.all_reduce(torch.ones(2, dtype=torch.int32), op=dist.ReduceOp.MAX, group=group)
    dist.barrier(group)


late(dist.new_group([0], group_desc="late"))
until(lambda: warned)
say(dropped=names.dropped)
dist.destroy_process_group()
