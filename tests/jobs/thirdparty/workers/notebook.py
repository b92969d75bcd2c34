"""A notebook with repeated training runs: its process starts the ranks, and outlives them."""

from __future__ import annotations

import os
import sys

import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from tests.jobs.thirdparty.cells import started, train

del sys.modules["__main__"].__file__  # a notebook has none


def cell(launch: int) -> None:
    """A training function defined in the notebook, as `notebook_launcher` takes it."""
    from accelerate import Accelerator

    Accelerator(cpu=True)
    train(launch)
    dist.destroy_process_group()


if __name__ == "__main__":
    folder, *launchers = sys.argv[1:]
    for launch, launcher in enumerate(launchers):
        if launcher == "notebook_launcher":
            from accelerate import notebook_launcher

            notebook_launcher(cell, (launch,), num_processes=2, use_port=os.environ["MASTER_PORT"])
        else:
            multiprocessing.start_processes(
                started, (launch, os.path.join(folder, f"store-{launch}")), nprocs=2, start_method=launcher
            )
