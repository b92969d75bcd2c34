"""Two ranks whose store holds a run id from an earlier attempt, while rank 0 is slow to set its own."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from otel_torchdist.model.kinds import RunIdState
from tests.support.ranks.rank import STORE, TIMEOUT, own_tape, rank, say, start_capture, world_size
from tests.support.waiting import until

STALE = 0xDEAD

store = dist.FileStore(os.environ[STORE], world_size())
update_default = distributed_c10d._update_default_pg
if rank() == 0:

    def slowly(group: dist.ProcessGroup) -> None:
        """Set the group up only when the other rank has read what the store holds."""
        store.get("rank 1 has read it")
        time.sleep(0.1)
        update_default(group)

    distributed_c10d._update_default_pg = slowly
capture = start_capture()
dist.init_process_group("gloo", store=store, rank=rank(), world_size=world_size(), timeout=TIMEOUT)
tape = own_tape(capture)
if rank() == 1:
    _, store_of_group = distributed_c10d._world.pg_map[dist.group.WORLD]
    store_of_group.set("otel_torchdist/run/2/0", f"{STALE:032x}/0")
    until(lambda: tape.status().run_id_state is RunIdState.PROVISIONAL)
    say(first=tape.status().run_id)
    store.set("rank 1 has read it", "")
dist.all_reduce(torch.ones(1))
until(lambda: tape.status().run_id_state is RunIdState.AGREED)
dist.barrier()
