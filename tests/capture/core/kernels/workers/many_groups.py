"""Creates, uses and destroys groups; then a wait for an operation of a group that was destroyed raises."""

from __future__ import annotations

import gc
import time

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from otel_torchdist.capture.core.c10d.native_kernels import NativeKernels
from otel_torchdist.capture.core.calls.call import GroupState
from tests.support.ranks.rank import part_of, say, start_capture

GROUPS = 400
KIND_OF_NO_PLAN = 1


def use(group: dist.ProcessGroup) -> None:
    """Call two operations."""
    dist.all_reduce(torch.ones(4), group=group)
    dist.broadcast(torch.ones(4), 0, group=group)


capture = start_capture()
dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
for _ in range(GROUPS):
    made = dist.new_group([0])
    assert made is not None
    use(made)
    dist.destroy_process_group(made)
del made
gc.collect()
say(kept=sum(isinstance(one, GroupState) for one in gc.get_objects()))
recorder, native = capture.current_recorder(), part_of(capture, NativeKernels)
if native is not None and recorder is not None:
    entered_ns = time.monotonic_ns()
    number = recorder.tape.begin(entered_ns, 0, 1, 4, 0, 0, 0, 0, -1, 77, 0, 1, 1)
    native._on_failed(None, number, entered_ns, KIND_OF_NO_PLAN, RuntimeError("closed"))
dist.destroy_process_group()
