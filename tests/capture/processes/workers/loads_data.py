"""One rank whose data comes from two forked workers, which use their own optimizer and wait."""

from __future__ import annotations

import atexit
import os
import threading

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from tests.support.ranks.rank import join, say, start_capture
from tests.support.waiting import until


def step() -> None:
    """Run an optimizer, which ends a step if there is a tape."""
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    torch.optim.SGD([parameter], lr=0.1).step()


class Data(Dataset[dict[str, object]]):
    """Reports what the worker sees of us."""

    def __getitem__(self, index: int) -> dict[str, object]:
        """An item: what this worker sees."""
        step()
        x = torch.ones(2)
        inherited.wait()
        ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("otel")]
        return {"pid": os.getpid(), "threads": ours, "sum": float(x.sum())}

    def __len__(self) -> int:
        """The number of items."""
        return 4


start_capture()
join()
inherited = dist.all_reduce(torch.ones(1), async_op=True)
until(inherited.is_completed)  # a child has none of gloo's threads
loader = DataLoader(Data(), batch_size=None, num_workers=2, multiprocessing_context="fork")
items = list(loader)
dist.all_reduce(torch.ones(1))
say(items=items, pid=os.getpid())
dist.barrier()
child = os.fork()
if child == 0:  # after the last record of the parent, which would otherwise overwrite that of its child
    step()
    # The parent's exit handlers must do nothing here. A real exit would hang in gloo, with us or without.
    atexit._run_exitfuncs()
    os._exit(5)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 5
