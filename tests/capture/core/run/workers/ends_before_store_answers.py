"""A correct program. Its store answers our own connection only when Python ends. Arguments: rank, port of the store."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeProcessGroup

from tests.support.ranks.rank import say

rank, port = map(int, sys.argv[1:])
assert FakeProcessGroup  # its module registers the backend


class Ending:
    """Says that Python ends: modules are taken down when no thread may have the GIL any more."""

    def __del__(self) -> None:
        """Give the store time to answer."""
        print("ending", flush=True)
        time.sleep(1)


ending = Ending()
store = dist.TCPStore("127.0.0.1", port, is_master=False)
dist.init_process_group("fake", store=store, rank=rank, world_size=2)
say(has_id=distributed_c10d._get_default_store().check(["otel_torchdist/run/2/0"]))
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
