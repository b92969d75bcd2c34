"""Four ranks that never call `init_process_group`: a mesh of two dimensions, then one of one."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.support.ranks.rank import rank, start_capture

capture = start_capture()
square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
# A rank of the far corner shares no group with rank 0: the others have met rank 0 before they meet that rank.
dist.all_reduce(torch.ones(1), group=square.get_group("tp"))
dist.all_reduce(torch.ones(1), group=square.get_group("dp"))
dist.all_reduce(torch.full((1,), float(rank())), group=square.get_group("dp"))
line = init_device_mesh("cpu", (4,))
dist.all_reduce(torch.ones(1), group=line.get_group())
dist.destroy_process_group()
