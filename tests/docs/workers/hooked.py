"""What the examples of docs/hooks.md are put around: three steps in a group, and one value that is out of range."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from otel_torchdist import mark_step

if __name__ == "__main__":
    folder, bad = Path(sys.argv[1]), float(sys.argv[2])
    os.chdir(folder)
    if (folder / "in_code.py").exists():
        exec(compile((folder / "in_code.py").read_text(), "in_code.py", "exec"))
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    group = dist.new_group(group_desc="mesh_dp")  # a mesh's dimension over all ranks would be the default group
    for step in range(3):
        gradients = torch.full((4,), bad if (step, rank) == (2, 1) else 1.0)
        dist.all_reduce(gradients, group=group)
        mark_step()
    print("trained", rank, flush=True)
    dist.destroy_process_group()
