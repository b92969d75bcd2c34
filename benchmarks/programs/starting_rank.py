"""Command line: `python -m benchmarks.programs.starting_rank inits`.

An uninstrumented user's script: it creates the default group, communicates and destroys the group, several times. It
prints the nanoseconds of each time, without waits for a processor, and exits.
"""

from __future__ import annotations

import argparse
import json

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.stopwatch import time_of

WORLD_SIZE = 8


def main() -> None:
    """Create and destroy groups, and report the times."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.starting_rank", description=__doc__)
    parser.add_argument("inits", type=int, help="number of times to create the default group")
    inits: int = parser.parse_args().inits
    torch.set_num_threads(1)
    tensor = torch.ones(4)
    times = [_begin_and_end(tensor) for _ in range(inits)]
    print(json.dumps(times), flush=True)


def _begin_and_end(tensor: torch.Tensor) -> tuple[int, int, int]:
    store = FakeStore()
    init = time_of(lambda: dist.init_process_group("fake", store=store, rank=0, world_size=WORLD_SIZE))
    call = time_of(lambda: dist.all_reduce(tensor))
    return init.own, call.own, time_of(dist.destroy_process_group).own


if __name__ == "__main__":
    main()
