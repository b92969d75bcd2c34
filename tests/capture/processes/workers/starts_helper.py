"""A rank that starts a process which creates its own group, as `async_save` does."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.support.ranks.rank import join


def serve() -> None:
    """Run the process: the same rank, with another store at another address."""
    os.environ["MASTER_PORT"] = "2"
    join(suffix="-helper")
    dist.all_reduce(torch.ones(1))


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    join()
    helper = mp.get_context("forkserver").Process(target=serve, daemon=True)
    helper.start()
    helper.join()
    dist.destroy_process_group()
    raise SystemExit(helper.exitcode)
