"""An interpreter that has imported torch, and forks ranks that exit while operations are in flight.

It reads orders as lines of JSON, and answers each with a line about the ends of its ranks. A rank is forked from the
main module's frame and returns from it, so it ends as every interpreter does: exit handlers, the end of all threads and
modules, destructors of C++. Forking saves the import of torch, which takes seconds of a core.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from otel_torchdist.capture import session  # noqa: F401  # as if it had been imported with torch
from otel_torchdist.launch.switch import switch_on_from_environment

PATIENCE = timedelta(seconds=300)
LIMIT_S = 300
"""Seconds after which a rank that has not ended is killed."""
MAX_OPERATIONS = 48
MAX_ELEMENTS = 1 << 16
LONGEST_S = 0.004
"""Longest time that a rank continues after its last call, in seconds."""


def main() -> None:
    """Carry out orders; in a forked rank, return at the end of its program."""
    for line in sys.stdin:
        order = json.loads(line)
        ranks: dict[int, int] = {}
        for rank in range(order["ranks"]):
            child = os.fork()
            if child == 0:
                _be_rank(order, rank)
                return
            ranks[child] = rank
        codes = [0] * len(ranks)
        for child, rank in ranks.items():
            codes[rank] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps(codes), flush=True)


def _be_rank(order: dict[str, Any], rank: int) -> None:
    """Issue operations without waiting for them, and report the number in flight."""
    folder = Path(order["folder"])
    with (folder / f"stderr-{rank}").open("wb") as file:
        os.dup2(file.fileno(), 2)
    os.dup2(2, 1)
    signal.alarm(LIMIT_S)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", **order["settings"]}
    if order["settings"]:
        switch_on_from_environment()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", PATIENCE, world_size=order["ranks"], rank=rank)
    chance = random.Random(order["seed"])
    sizes = [chance.randrange(1, MAX_ELEMENTS) for _ in range(chance.randrange(8, MAX_OPERATIONS))]
    works = [dist.all_reduce(torch.ones(size), async_op=True) for size in sizes]
    time.sleep(random.Random(order["seed"] + rank + 1).random() * LONGEST_S)
    in_flight = sum(work is not None and not work.is_completed() for work in works)
    (folder / f"issued-{rank}").write_text(f"{len(works)} {in_flight}")
    if chance.random() < 0.5:
        global left
        left = works  # keeps the Works alive, as a program with a global variable does


if __name__ == "__main__":
    main()
