"""A rank with a torch that lacks the private function for phases."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

del torch._C._current_graph_task_id
for name in [name for name in sys.modules if name.startswith(("otel_torchdist.capture", "tests.support.ranks.rank"))]:
    del sys.modules[name]  # what has found it

from tests.support.ranks.rank import join, start_capture  # noqa: E402

start_capture()
join()
weight = torch.ones(4, requires_grad=True)
weight.register_hook(lambda gradient: dist.all_reduce(gradient))
weight.sum().backward()
dist.destroy_process_group()
