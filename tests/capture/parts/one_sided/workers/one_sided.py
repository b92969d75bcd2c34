"""Two ranks use symmetric memory and windows, which this script adds for the CPU: torch has them for devices only."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from otel_torchdist.capture.parts.one_sided import symmetric_schemas
from tests.support.ranks.rank import join, rank, say, start_capture

seen: list[str] = []


def reduce(input: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
    """Reduce as a device would, without informing c10d."""
    seen.append(group_name)
    return input * 2


def refuse(input: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
    """Raise, as a device without a connection does."""
    raise ValueError("no such device")


capture = start_capture()
join()
library = torch.library.Library("symm_mem", "IMPL")
library.impl("one_shot_all_reduce", reduce, "CPU")
library.impl("two_shot_all_reduce_", refuse, "CPU")
pair = dist.new_group([1, 0], group_desc="pair")
operations: Any = torch.ops.symm_mem
dist.all_reduce(torch.ones(2), group=pair)
if rank() == 0:  # not all members have to call it
    result = operations.one_shot_all_reduce(torch.ones(3), "sum", pair.group_name)
    say(result=result.tolist(), seen=seen == [pair.group_name])
    operations.one_shot_all_reduce(torch.ones(3), "sum", pair.group_name)
    operations.one_shot_all_reduce(torch.ones(3, device="meta"), "sum", "no such group")
    try:
        operations.two_shot_all_reduce_(torch.ones(4), "sum", pair.group_name)
    except ValueError as error:
        say(refused=str(error))
dist.all_reduce(torch.ones(2), group=pair)
if hasattr(pair, "new_window"):
    try:
        pair.new_window(torch.ones(5))  # gloo does not have any
    except RuntimeError as error:
        say(refused=str(error))
dist.all_reduce(torch.ones(2), group=pair)
library._destroy()
dist.destroy_process_group()
capture.uninstall()
say(
    left=[
        one.name
        for one in symmetric_schemas()
        if torch._C._dispatch_has_kernel_for_dispatch_key(one.overload.name(), "BackendSelect")
    ]
)
