"""An unprepared job on gloo: `dumping.py hangs GATE PIDS FOLDER SNIPPET`. Rank 2 never comes to the last collective.

A thread of each rank then runs the snippet, which writes the rank's dump into `dumps`, and writes the same as JSON into
`json`, both in the folder, which is the current directory.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace_json

LATE: Final = 2
rank = int(os.environ["RANK"])


def enqueued() -> int:
    """How many collectives gloo's recorder has counted."""
    [status] = json.loads(_dump_fr_trace_json(False, False))["pg_status"].values()
    return int(status["last_enqueued_collective"])


def dump(before: int) -> None:
    """Write both dumps, once this rank hangs."""
    while rank != LATE and enqueued() == before:
        time.sleep(0.01)
    time.sleep(0.5)  # it counts a collective before it has recorded it
    exec(compile(Path(sys.argv[5]).read_text(), "snippet", "exec"), {"rank": rank})
    new = Path(f"json/.rank_{rank}.json")
    new.write_bytes(_dump_fr_trace_json(True, False))
    new.rename(f"json/rank_{rank}.json")


os.chdir(sys.argv[4])
dist.init_process_group("gloo", init_method=os.environ["STORE"], rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
values = torch.ones(4)
for _ in range(5):
    dist.all_reduce(values)
threading.Thread(target=dump, args=(enqueued(),), daemon=True).start()
if rank == LATE:
    time.sleep(600)
dist.all_reduce(values)
