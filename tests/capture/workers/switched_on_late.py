"""Two ranks switch capture on, off, and on again during training, and check that torch is restored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Work, distributed_c10d
from torch.optim import optimizer

from otel_torchdist.model.kinds import RunIdState
from tests.support.ranks.rank import join, own_tape, say, start_capture
from tests.support.waiting import until


def torch_as_it_is() -> dict[str, Any]:
    """Return everything in torch that capture modifies."""
    kernels = [name for name in torch._C._dispatch_get_all_op_names() if "c10d" in name]
    return {
        "dispatch": {name: torch._C._dispatch_dump(name) for name in kernels},
        "hooks": [
            len(optimizer._global_optimizer_pre_hooks),
            len(optimizer._global_optimizer_post_hooks),
        ],
        "attributes": [
            vars(Work)["wait"],
            vars(ProcessGroup)["_start_coalescing"],
            vars(ProcessGroup)["_end_coalescing"],
            distributed_c10d._new_process_group_helper,
            distributed_c10d._update_default_pg,
        ],
    }


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The keys whose values differ."""
    return [key for key in before if before[key] != after[key]]


def all_reduce(times: int, group: ProcessGroup | None = None) -> None:
    """Communicate this often."""
    for _ in range(times):
        dist.all_reduce(torch.ones(4), group=group)


join()
before = torch_as_it_is()
early = dist.new_group([0, 1], group_desc="early")
all_reduce(3)
all_reduce(1, early)
in_flight = dist.all_reduce(torch.ones(4), async_op=True)

first = start_capture()
in_flight.wait()
all_reduce(2)
all_reduce(1, early)
late = dist.new_group([0, 1], group_desc="late")
all_reduce(1, late)
until(lambda: own_tape(first).status().run_id_state is RunIdState.AGREED)
dist.barrier()
say(changed_while_on=differences(before, torch_as_it_is()))
helper: Callable[..., Any] = distributed_c10d._new_process_group_helper
left_open = dist.all_reduce(torch.ones(4), async_op=True)
first.uninstall()
say(changed_while_off=differences(before, torch_as_it_is()))
left_open.wait()
all_reduce(1)
work = dist.all_reduce(torch.ones(4), async_op=True)
work.wait()
# Code that kept our replacement of torch's function can go on calling it.
distributed_c10d._new_process_group_helper = helper
dist.new_group([0, 1])
distributed_c10d._new_process_group_helper = before["attributes"][3]

second = start_capture()
all_reduce(1)
all_reduce(1, late)
until(lambda: own_tape(second).status().run_id_state is RunIdState.AGREED)
dist.barrier()
second.uninstall()
say(changed_at_the_end=differences(before, torch_as_it_is()))
dist.barrier()
